Names that need quoting in every language on the way, and a rename to a reserved word.
--@setup
create table "order by"("primary" int primary key, "say ""hi""" text, "x.y" text, "why?" text, "$2" text, "it's" text,
    "@p;--" text, ":named" int);
insert into "order by" values (1, 'a', 'b', 'c', 'd', 'e', 'f', 1);
create publication odd for table "order by";
--@stream
insert into "order by" values (2, 'a2', 'b2', 'c2', 'd2', 'e2', 'f2', 2);
update "order by" set "say ""hi""" = 'said' where "primary" = 1;
delete from "order by" where "primary" = 2;
alter table "order by" rename column "why?" to "select";
insert into "order by" values (3, 'a3', 'b3', 'c3', 'd3', 'e3', 'f3', 3);
alter table "order by" add column "a ""new"" one" text default 'it''s ? $1 :x';
alter table "order by" rename to "group by ""1""";
update "group by ""1""" set ":named" = 30 where "primary" = 3;
--@check
select * from "group by ""1""" order by 1;
--@expect group by "1": primary, say "hi", x.y, select, $2, it's, @p;--, :named, a "new" one
[1, "said", "b", "c", "d", "e", "f", 1, "it's ? $1 :x"]
[3, "a3", "b3", "c3", "d3", "e3", "f3", 30, "it's ? $1 :x"]
