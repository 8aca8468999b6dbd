Bytes are hex once, not twice; no bytes is an empty text and not NULL; digits alone stay text.
--@setup
create table packet(id int primary key, raw bytea);
insert into packet values (1, '\x3536'), (2, ''), (3, '\x00'), (4, null);
create publication wire for table packet;
--@stream
insert into packet values (5, '\xcafebabe'), (6, '\x32e7'), (7, null), (8, '\x5c785c'), (9, '');
update packet set raw = '\x000123' where id = 1;
update packet set raw = '' where id = 4;
update packet set raw = null where id = 9;
--@check
select id, raw, octet_length(raw) from packet order by id;
--@expect packet: id, raw
[1, "000123"]
[2, ""]
[3, "00"]
[4, ""]
[5, "cafebabe"]
[6, "32e7"]
[7, null]
[8, "5c785c"]
[9, null]
