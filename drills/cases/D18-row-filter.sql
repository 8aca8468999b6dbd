A publication with a row filter: the first copy keeps to it, and rows come and go as they cross it.
--@setup
create table ticket(id int primary key, status text, memo text);
alter table ticket replica identity full;
insert into ticket values (1, 'live', 'a'), (2, 'shut', 'b'), (3, 'live', 'c'), (4, 'shut', 'd');
create publication desk for table ticket where (status = 'live');
--@stream
update ticket set status = 'shut' where id = 1;
update ticket set status = 'live' where id = 2;
update ticket set memo = 'kept' where id = 3;
insert into ticket values (5, 'shut', 'unseen'), (6, 'live', 'seen');
delete from ticket where id in (4, 5);
update ticket set memo = 'still unseen' where id = 1;
--@check
select * from ticket where status = 'live' order by id;
--@expect ticket: id, status, memo
[2, "live", "b"]
[3, "live", "kept"]
[6, "live", "seen"]
