Numerics are text, digit for digit: special values, trailing zeros, more digits than a double has.
--@setup
create table price_book(id int primary key, free numeric, fixed numeric(14,4));
insert into price_book values (10, 'NaN', 'NaN'), (11, 2.50, 2.5), (12, 0, 0.0), (13, '-0.000', 1);
create publication goods for table price_book;
--@stream
insert into price_book values (14, 'Infinity', null), (15, '-Infinity', 9);
insert into price_book values (16, 98765432109876543210987654321098765432.100000000000000000009, 0.0001);
insert into price_book values (17, 3e45, 5e-4), (18, 1e-20, 9999999999.9999), (19, null, 250);
update price_book set free = 'NaN', fixed = 7 where id = 11;
update price_book set fixed = 'NaN' where id = 13;
--@check
select id, free, fixed from price_book order by id;
--@expect price_book: id, free, fixed
[10, "NaN", "NaN"]
[11, "NaN", "7.0000"]
[12, "0", "0.0000"]
[13, "0.000", "NaN"]
[14, "Infinity", null]
[15, "-Infinity", "9.0000"]
[16, "98765432109876543210987654321098765432.100000000000000000009", "0.0001"]
[17, "3000000000000000000000000000000000000000000000", "0.0005"]
[18, "0.00000000000000000001", "9999999999.9999"]
[19, null, "250.0000"]
