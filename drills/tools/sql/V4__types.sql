begin;
alter table shop.item alter column label type text, alter column price type numeric;
alter table inventory alter column amount type bigint using amount * 10;
insert into shop.item(label, price) values (repeat('long ', 20), 0.123456789);
insert into version values (4);
commit;
