A label gets a new name, and nothing touches the rows that hold it: Postgres sends none of them, the mirror must show
the new name all the same. Arrays, domains and composites of the enum hold it too.
--@setup
create type mood as enum ('low', 'high');
create domain mood_now as mood;
create type diary as (day int, felt mood);
create table person(id int primary key, m mood, before mood[], now mood_now, note diary);
insert into person values (1, 'high', '{low,high}', 'high', '(1,high)'), (2, 'low', '{}', 'low', '(2,low)');
create publication moods for table person;
--@stream
insert into person values (3, 'high', '{high}', null, null);
alter type mood rename value 'high' to 'very high';
insert into person values (4, 'very high', null, 'very high', '(4,"very high")');
--@check
select * from person order by id;
--@expect person: id, m, before, now, note
[1, "very high", {"array": ["low", "very high"]}, "very high", "(1,\"very high\")"]
[2, "low", {"array": []}, "low", "(2,low)"]
[3, "very high", {"array": ["very high"]}, null, null]
[4, "very high", null, "very high", "(4,\"very high\")"]
