json is kept byte for byte, jsonb as Postgres prints it; a JSON null is not an SQL NULL.
--@setup
create table doc(id int primary key, raw json, tidy jsonb);
insert into doc values (1, '{"z":2,   "y":1, "z":3}', '{"z":2,   "y":1, "z":3}'), (2, 'null', 'null'), (3, null, null), (4, '[]', '{}');
create publication docs for table doc;
--@stream
insert into doc values (5, '{"n":555555555555555555555555555555.500, "m": 1E+2}', '{"n":555555555555555555555555555555.500, "m": 1E+2}');
insert into doc values (6, '"nul \u0000 in it"', '"none"'), (7, '2.0', '2.0'), (8, '"\u00fc\ud83e\udd8a"', '"\u00fc\ud83e\udd8a"');
insert into doc values (9, E' \t[ true ,\n null ]  ', E' \t[ true ,\n null ]  ');
update doc set raw = ' { } ', tidy = ' { } ' where id = 1;
update doc set tidy = null where id = 2;
update doc set raw = 'null', tidy = 'null' where id = 3;
--@check
select * from doc order by id;
--@expect doc: id, raw, tidy
[1, " { } ", "{}"]
[2, "null", null]
[3, "null", "null"]
[4, "[]", "{}"]
[5, "{\"n\":555555555555555555555555555555.500, \"m\": 1E+2}", "{\"m\": 100, \"n\": 555555555555555555555555555555.500}"]
[6, "\"nul \\u0000 in it\"", "\"none\""]
[7, "2.0", "2.0"]
[8, "\"\\u00fc\\ud83e\\udd8a\"", "\"ü🦊\""]
[9, " \t[ true ,\n null ]  ", "[true, null]"]
