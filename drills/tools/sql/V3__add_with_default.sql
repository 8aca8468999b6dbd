begin;
alter table shop.item add column visible boolean not null default true, add column added timestamptz default now();
alter table inventory add column checked timestamptz default clock_timestamp();
update inventory set amount = -1 where item = 3;
insert into version values (3);
commit;
