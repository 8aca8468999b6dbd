begin;
create table item(id bigint generated always as identity primary key, title varchar(30) not null, price numeric(8,2), made date default '2024-02-29');
create table stock(item bigint references item, place text, amount int default 0, primary key (item, place));
alter publication :"publication" add table item, stock;
insert into item(title, price) select 'item ' || n, n * 1.10 from generate_series(1, 60) n;
insert into stock select id, 'shelf', id from item;
insert into version values (1);
commit;
