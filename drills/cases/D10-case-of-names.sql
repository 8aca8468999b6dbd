SQLite knows no difference between these columns, so the table is refused by its name before anything is copied.
--@setup
create table cased(id int primary key, "Title" text, title text, "TITLE" text);
insert into cased values (1, 'A', 'b', 'C');
create publication names for table cased;
--@stream
update cased set title = 'bb' where id = 1;
--@check
select * from cased order by id;
--@refused cased title
