The same partitions as `prepare` publishes them: by leaf, mirrored as one table all the same.
--@setup
create table reading(id int, day date, v int, unit text, primary key (id, day)) partition by range (day);
create table reading_old partition of reading for values from ('2021-01-01') to ('2022-01-01');
create table reading_new(unit text, gone int, v int, day date not null, id int not null);
alter table reading_new drop column gone;
alter table reading_new add primary key (id, day);
alter table reading attach partition reading_new for values from ('2022-01-01') to ('2023-01-01');
insert into reading values (1, '2021-03-03', 100, 'lux'), (2, '2022-03-03', 200, 'dB');
--@prepare public.reading
--@stream
insert into reading values (3, '2022-09-09', 300, 'dB'), (4, '2021-09-09', 400, 'lux');
update reading set v = 201 where id = 2;
update reading set day = '2021-12-24' where id = 2;
delete from reading where id = 1;
truncate reading;
insert into reading values (2, '2021-12-24', 201, 'dB'), (4, '2021-09-09', 400, 'lux');
insert into reading values (5, '2022-05-05', 500, 'K');
--@check
select * from reading order by id;
--@expect reading: id, day, v, unit
[2, "2021-12-24", 201, "dB"]
[4, "2021-09-09", 400, "lux"]
[5, "2022-05-05", 500, "K"]
