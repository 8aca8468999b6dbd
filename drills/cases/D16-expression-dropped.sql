A generated column in the middle of a table becomes an ordinary one. Values that rows have from before were never sent, and
columns behind it must stay where they are; the key is an identity.
--@setup
create table bill(id int generated always as identity primary key, hours numeric(6,2),
    total numeric(8,2) generated always as (hours * 80) stored, memo text);
insert into bill(hours, memo) values (1.50, 'm1');
create publication bills for table bill;
--@stream
insert into bill(hours, memo) values (2.00, 'm2');
alter table bill alter column total drop expression;
insert into bill(hours, total, memo) values (1, 7.77, 'm3');
update bill set total = 0.10 where id = 1;
insert into bill overriding system value values (700, 3, 3.30, 'm700');
--@check
select * from bill order by id;
--@expect bill: id, hours, total, memo
[1, "1.50", "0.10", "m1"]
[2, "2.00", "160.00", "m2"]
[3, "1.00", "7.77", "m3"]
[700, "3.00", "3.30", "m700"]
