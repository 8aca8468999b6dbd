A key of an enum, a text without case and a domain: its updates and deletes find their row, its text stays as stored.
--@setup
create extension citext;
create type pace as enum ('walk', 'run', 'ride');
create domain code as text check (length(value) between 1 and 9);
create table fare(p pace, rider citext, c code, cents int, primary key (p, rider, c));
insert into fare values ('walk', 'Eve', '0042', 5), ('run', 'Zoë', '2e3', 6), ('ride', 'kim', 'q', 7), ('ride', 'lee', '1.0', 8);
create publication fares for table fare;
--@stream
update fare set cents = 50 where p = 'walk' and rider = 'EVE';
update fare set rider = 'ZOË' where rider = 'zoë';
delete from fare where p = 'ride' and c = 'q';
update fare set p = 'walk', c = '09' where c = '2e3';
update fare set rider = 'LEE' where rider = 'Lee';
--@check
select * from fare order by 1, 2, 3;
--@expect fare: p, rider, c, cents
["walk", "Eve", "0042", 50]
["walk", "ZOË", "09", 6]
["ride", "LEE", "1.0", 8]
