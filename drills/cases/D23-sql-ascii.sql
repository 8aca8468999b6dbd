A database without an encoding cannot be read as UTF-8: refused by that name before anything is copied.
--@db
encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0
--@setup
set client_encoding = 'SQL_ASCII';
create table bytes_as_text(id int primary key, v text);
insert into bytes_as_text values (1, 'plain'), (2, E'na\303\257ve'), (3, E'broken\376');
create publication raw for table bytes_as_text;
--@stream
--@check
select id from bytes_as_text order by id;
--@refused SQL_ASCII
