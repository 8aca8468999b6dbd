Columns come in the middle of a transaction that writes before and after. Their defaults look like literals and are not:
what each row holds is what Postgres evaluated once, or once a row.
--@setup
create sequence ticket start 500;
create table place(id int primary key, label text);
insert into place values (1, 'a'), (2, 'b');
create publication places for table place;
--@stream
begin;
insert into place values (3, 'c');
alter table place
    add column open boolean default (1 < 2 and false),
    add column owner name default session_user,
    add column ticket bigint default nextval('ticket'),
    add column since timestamptz default '2023-06-01 01:00:00+03',
    add column every interval default '90 minutes'::interval,
    add column price numeric(8,3) default 1.5;
insert into place(id, open) values (4, true);
update place set ticket = -7, label = 'first' where id = 1;
delete from place where id = 2;
commit;
insert into place(id, ticket) values (2, 0);
--@check
select * from place order by id;
--@expect place: id, label, open, owner, ticket, since, every, price
[1, "first", 0, "postgres", -7, "2023-05-31 22:00:00+00", "01:30:00", "1.500"]
[2, null, 0, "postgres", 0, "2023-05-31 22:00:00+00", "01:30:00", "1.500"]
[3, "c", 0, "postgres", 502, "2023-05-31 22:00:00+00", "01:30:00", "1.500"]
[4, null, 1, "postgres", 503, "2023-05-31 22:00:00+00", "01:30:00", "1.500"]
