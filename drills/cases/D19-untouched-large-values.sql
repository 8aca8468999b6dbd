Large values that an update leaves alone stay; an explicit NULL is another thing. Also with a large value in the key change.
--@setup
create table article(id int primary key, body text, facts jsonb, views int, words text[]);
alter table article alter body set storage external;
insert into article
  select 1, string_agg(md5('b' || n), ''), jsonb_object_agg('k' || n, md5('j' || n)), 0, array_agg(md5('w' || n))
  from generate_series(1, 250) n;
insert into article values (2, 'short', '{"a": 1}', 0, '{}');
create publication press for table article;
--@stream
update article set views = 1 where id = 1;
update article set facts = '{}' where id = 1;
update article set body = null where id = 2;
begin;
insert into article select 3, string_agg(md5('c' || n), ''), null, 0, null from generate_series(1, 250) n;
update article set views = 9 where id = 3;
commit;
begin;
update article set id = 30 where id = 3;
update article set views = views + 1 where id = 30;
commit;
update article set body = body || 'z' where id = 1;
update article set words = null, views = 2 where id = 1;
--@check
select id, md5(body), length(body), facts::text, views, md5(words::text) from article order by id;
--@expect article: id, body, facts, views, words
[1, {"length": 8001, "starts": "edbab45572c72a5d9440b40bcc0500c0"}, "{}", 2, null]
[2, null, "{\"a\": 1}", 0, {"array": []}]
[30, {"length": 8000, "starts": "a9f7e97965d6cf799a529102a973b8b9"}, null, 10, null]
