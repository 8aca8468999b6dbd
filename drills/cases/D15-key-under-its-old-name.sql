One command makes the primary key anew over other columns, under the name that it had. Rows of the mirror cannot be found
by the new key, so the stream stops there; a new generation goes on.
--@setup
create table link(a int not null, b int not null, note text, constraint link_key primary key (a, b));
insert into link values (1, 20, 'p'), (1, 30, 'q');
create publication links for table link;
--@stream
update link set note = 'p1' where b = 20;
alter table link drop constraint link_key, add column kind int not null default 4, add constraint link_key primary key (b, kind);
update link set note = 'p2' where b = 20;
update link set a = 6 where b = 30;
--@check
select a, b, kind, note from link order by b;
--@halts SchemaRefused public.link
--@frozen link: a, b, note
[1, 20, "p1"]
[1, 30, "q"]
--@expect link: a, b, kind, note
[1, 20, 4, "p2"]
[6, 30, 4, "q"]
