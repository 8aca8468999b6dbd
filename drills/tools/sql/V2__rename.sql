begin;
alter table item rename column title to label;
alter table stock rename to inventory;
create schema if not exists shop;
alter table item set schema shop;
update shop.item set label = 'renamed' where id = 7;
insert into version values (2);
commit;
