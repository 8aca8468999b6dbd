A table goes and another of its name comes, in one transaction: nothing of the first life is left, and a row that the copy
and the stream both bring is there once.
--@setup
create table bulletin(id int primary key, body text);
insert into bulletin values (1, 'old'), (2, 'old'), (3, 'old');
create publication board for table bulletin;
--@stream
update bulletin set body = 'older' where id = 1;
begin;
insert into bulletin values (4, 'last words');
drop table bulletin;
create table bulletin(id bigint primary key, weight int, body text);
insert into bulletin values (2, 5, 'new before it is published');
alter publication board add table bulletin;
insert into bulletin values (3, 6, 'new');
commit;
insert into bulletin values (9, 7, 'later');
update bulletin set weight = 50 where id = 2;
--@check
select * from bulletin order by id;
--@expect bulletin: id, weight, body
[2, 50, "new before it is published"]
[3, 6, "new"]
[9, 7, "later"]
