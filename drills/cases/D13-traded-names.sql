Three columns pass their names round between changes of rows, in one transaction; then the table gets another name, and
another table takes the one that is free.
--@setup
create table ring(id int primary key, a text, b text, c text);
insert into ring values (1, 'in a', 'in b', 'in c');
create table spare(id int primary key, v text);
insert into spare values (1, 'spare');
create publication rings for table ring, spare;
--@stream
begin;
update ring set a = 'still in a' where id = 1;
alter table ring rename column a to x;
alter table ring rename column b to a;
update ring set a = 'was b' where id = 1;
alter table ring rename column c to b;
alter table ring rename column x to c;
update ring set b = 'was c' where id = 1;
insert into ring(id, a, b, c) values (2, 'A', 'B', 'C');
commit;
begin;
alter table ring rename to wheel;
alter table spare rename to ring;
insert into ring values (2, 'now ring');
commit;
insert into wheel values (3, 'first', 'second', 'third');
--@check
select id, a, b, c from wheel order by id;
--@expect wheel: id, a, b, c
[1, "was b", "was c", "still in a"]
[2, "A", "B", "C"]
[3, "second", "third", "first"]
--@expect ring: id, v
[1, "spare"]
[2, "now ring"]
