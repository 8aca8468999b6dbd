Partitions published as their root; one has its columns in another order and lost one. Rows move between them.
--@setup
create table reading(id int, day date, v int, unit text, primary key (id, day)) partition by range (day);
create table reading_old partition of reading for values from ('2021-01-01') to ('2022-01-01');
create table reading_new(unit text, gone int, v int, day date not null, id int not null);
alter table reading_new drop column gone;
alter table reading_new add primary key (id, day);
alter table reading attach partition reading_new for values from ('2022-01-01') to ('2023-01-01');
insert into reading values (1, '2021-03-03', 100, 'lux'), (2, '2022-03-03', 200, 'dB');
create publication meters for table reading with (publish_via_partition_root = true);
--@stream
insert into reading values (3, '2022-09-09', 300, 'dB'), (4, '2021-09-09', 400, 'lux');
update reading set v = 201 where id = 2;
update reading set day = '2021-12-24' where id = 2;
delete from reading where id = 1;
update reading set day = '2022-01-01', v = -4 where id = 4;
--@check
select * from reading order by id;
--@expect reading: id, day, v, unit
[2, "2021-12-24", 201, "dB"]
[3, "2022-09-09", 300, "dB"]
[4, "2022-01-01", -4, "lux"]
