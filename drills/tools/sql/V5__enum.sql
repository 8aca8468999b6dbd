begin;
create type shop.state as enum ('new', 'used');
alter table shop.item add column state shop.state default 'new';
update shop.item set state = 'used' where id % 4 = 0;
insert into version values (5);
commit;
alter type shop.state add value 'broken';
alter type shop.state rename value 'used' to 'second hand';
update shop.item set state = 'broken' where id = 9;
