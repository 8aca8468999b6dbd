TRUNCATE of several tables in one statement, with its options, and between inserts of one transaction.
--@setup
create table ranch(id serial primary key, n text);
create table goat(id serial primary key, ranch_id int references ranch(id), n text);
create table ledger(id serial primary key, ranch_id int references ranch(id));
create table apart(id int primary key);
insert into ranch(n) values ('r1'), ('r2');
insert into goat(ranch_id, n) values (1, 'g1'), (2, 'g2');
insert into ledger(ranch_id) values (1);
insert into apart values (1), (2);
create publication land for table ranch, goat, apart;
--@stream
truncate ranch restart identity cascade;
insert into ranch(n) values ('after');
begin;
insert into goat(ranch_id, n) values (1, 'lost');
truncate goat, apart;
insert into goat(ranch_id, n) values (1, 'kept');
insert into apart values (3);
commit;
begin;
truncate apart;
rollback;
--@check
select * from ranch; select * from goat; select * from apart;
--@expect ranch: id, n
[1, "after"]
--@expect goat: id, ranch_id, n
[2, 1, "kept"]
--@expect apart: id
[3]
