Text that looks like a number stays text, whole numbers at both ends of their types stay exact, whatever key they are.
--@setup
create table tag(id bigint primary key, code text, zip varchar(10), pad char(6), owner oid, big bigint, small smallint, flag bool);
insert into tag values (-9223372036854775808, '0099', '09999', '12', 4294967295, 9007199254740993, -32768, true);
create publication tags for table tag;
--@stream
insert into tag values (9223372036854775807, '3e9', '0xff', '1e2', 2147483648, -9223372036854775808, 32767, false);
insert into tag values (0, ' 7 ', '2_000', '', 0, 9223372036854775807, 0, null), (1, 'Infinity', '+1', null, null, null, null, null);
insert into tag values (2, '', null, ' x', null, 0, null, null), (3, 'NaN', '1.0', '0.50', 3000000000, -1, 1, true);
update tag set id = -5 where id = 0;
delete from tag where id = 1;
--@check
select * from tag order by id;
--@expect tag: id, code, zip, pad, owner, big, small, flag
[-9223372036854775808, "0099", "09999", "12    ", 4294967295, 9007199254740993, -32768, 1]
[9223372036854775807, "3e9", "0xff", "1e2   ", 2147483648, -9223372036854775808, 32767, 0]
[-5, " 7 ", "2_000", "      ", 0, 9223372036854775807, 0, null]
[2, "", null, " x    ", null, 0, null, null]
[3, "NaN", "1.0", "0.50  ", 3000000000, -1, 1, 1]
