Other software puts messages into the WAL: inside transactions, outside them, empty, binary, under our own name.
--@setup
create table calm(id int primary key, v text);
insert into calm values (1, 'one');
create publication quiet for table calm;
--@stream
begin; select pg_logical_emit_message(true, 'shop', 'order'); update calm set v = 'uno' where id = 1; select pg_logical_emit_message(true, '', ''); commit;
select pg_logical_emit_message(false, 'mail', '\xff00fe'::bytea);
begin; insert into calm values (2, 'never'); select pg_logical_emit_message(false, 'mail', 'it outlives the rollback'); rollback;
select pg_logical_emit_message(true, 'rindle', '{"this": "is foreign"}');
select pg_logical_emit_message(false, 'rindle', '\x00'::bytea);
begin; select pg_logical_emit_message(true, 'rindle.ddl', repeat('x', 100000)); insert into calm values (3, 'three'); commit;
--@check
select * from calm order by id;
--@expect calm: id, v
[1, "uno"]
[3, "three"]
