Two values swapped under a deferred unique constraint, keys shifted by one, keys passed around in a circle.
--@setup
create table seat(id int primary key, place int not null unique deferrable initially deferred, guest text);
insert into seat values (1, 100, 'x'), (2, 200, 'y'), (3, 300, 'z');
create table rung(id int primary key, v text);
insert into rung values (4, 'd'), (3, 'c'), (2, 'b'), (1, 'a');
create publication hall for table seat, rung;
--@stream
begin;
update seat set place = 300 where id = 1;
update seat set place = 100 where id = 3;
commit;
update rung set id = id + 1;
begin;
update seat set id = 77 where id = 1;
update seat set id = 1 where id = 2;
update seat set id = 2 where id = 3;
update seat set id = 3 where id = 77;
commit;
begin;
delete from rung where id = 5;
update rung set id = 5 where id = 2;
insert into rung values (2, 'again');
savepoint s;
delete from rung;
rollback to s;
update rung set v = v || '!' where id = 3;
commit;
--@check
select * from seat order by id; select * from rung order by id;
--@expect seat: id, place, guest
[1, 200, "y"]
[2, 100, "z"]
[3, 300, "x"]
--@expect rung: id, v
[2, "again"]
[3, "b!"]
[4, "c"]
[5, "a"]
