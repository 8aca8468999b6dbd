The database prints dates, intervals, bytes, floats and money in a way of its own; the mirror must not see it.
--@setup
do $$
declare setting text;
begin
  foreach setting in array array[
    $s$datestyle = 'German, DMY'$s$, $s$timezone = 'Asia/Kathmandu'$s$, $s$intervalstyle = 'iso_8601'$s$,
    $s$bytea_output = 'escape'$s$, $s$extra_float_digits = -10$s$] loop
    execute format('alter database %I set %s', current_database(), setting);
  end loop;
end $$;
create table roster(id int primary key, day date, at timestamp, zoned timestamptz, span tstzrange, lasts interval, raw bytea, ratio float8, small float4);
insert into roster values
  (1, '2023-02-01', '2023-02-01 23:10:09', '2023-02-01 23:10:09+00', '[2023-02-01 00:00+00,2023-02-02 00:00+00)', '1 mon 2 days 03:00', '\x00ff41', 0.1, 0.1);
create publication crew for table roster;
--@stream
insert into roster values (2, '2023-11-12', '2023-11-12 01:02:03.25', '2023-11-12 01:02:03.25+00', null, '-1 day', '\x5c', 1e-300, 16777216);
update roster set day = '2023-02-03', ratio = 2.0 / 3 where id = 1;
--@check
select * from roster order by id;
--@expect roster: id, day, at, zoned, span, lasts, raw, ratio, small
[1, "2023-02-03", "2023-02-01 23:10:09", "2023-02-01 23:10:09+00", "[\"2023-02-01 00:00:00+00\",\"2023-02-02 00:00:00+00\")", "1 mon 2 days 03:00:00", "00ff41", 0.6666666666666666, 0.1]
[2, "2023-11-12", "2023-11-12 01:02:03.25", "2023-11-12 01:02:03.25+00", null, "-1 days", "5c", 1e-300, 16777216.0]
