drop index concurrently shop.item_label;
begin;
alter table shop.item drop column made, drop column state;
drop type shop.state;
insert into inventory(item, place) values (1, 'gone');
drop table inventory;
insert into shop.item(label) values ('last');
insert into version values (7);
commit;
