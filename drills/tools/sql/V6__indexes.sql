create index concurrently item_label on shop.item(label);
create unique index concurrently inventory_place on inventory(place, item);
reindex table concurrently shop.item;
begin;
alter table inventory drop constraint stock_pkey, add constraint inventory_pkey primary key (item, place);
delete from inventory where item = 5;
insert into version values (6);
commit;
