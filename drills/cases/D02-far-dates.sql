Dates before Christ and after the year 9999, the last second of a day, offsets with seconds: all as Postgres prints them.
--@setup
create table era(id int primary key, day date, at timestamp, zoned timestamptz, clock timetz, length interval);
insert into era values
  (1, '0100-02-28 BC', '0100-02-28 06:30:00 BC', '0100-02-28 06:30:00+00 BC', '24:00:00-03:30', '-1 year 2 mons -3 days 04:05:06.7'),
  (2, 'infinity', '-infinity', 'infinity', '00:00:00+00', '0');
create publication times for table era;
--@stream
insert into era values (3, '15000-12-31', '15000-12-31 23:59:59.999999', '15000-12-31 23:59:59.999999+00', '12:00:00.5+14', '178000000 years');
insert into era values (4, '4713-01-01 BC', '4713-01-01 00:00:00 BC', '4713-06-01 00:00:00+00 BC', '00:00:00-15:59:59', '-00:00:00.000001');
insert into era values (5, null, null, null, null, null);
update era set day = '0001-01-01 BC', at = '0001-01-01' where id = 3;
update era set at = 'infinity', length = '1 day -01:00' where id = 2;
--@check
select * from era order by id;
--@expect era: id, day, at, zoned, clock, length
[1, "0100-02-28 BC", "0100-02-28 06:30:00 BC", "0100-02-28 06:30:00+00 BC", "24:00:00-03:30", "-10 mons -3 days +04:05:06.7"]
[2, "infinity", "infinity", "infinity", "00:00:00+00", "1 day -01:00:00"]
[3, "0001-01-01 BC", "0001-01-01 00:00:00", "15000-12-31 23:59:59.999999+00", "12:00:00.5+14", "178000000 years"]
[4, "4713-01-01 BC", "4713-01-01 00:00:00 BC", "4713-06-01 00:00:00+00 BC", "00:00:00-15:59:59", "-00:00:00.000001"]
[5, null, null, null, null, null]
