An enum gets a label and another one a new name while rows stream; the next rows use both.
--@setup
create type stage as enum ('draft', 'sent');
create table letter(id int primary key, s stage, past stage[]);
insert into letter values (1, 'draft', '{draft}'), (2, 'draft', '{}');
create publication post for table letter;
--@stream
update letter set s = 'sent' where id = 1;
alter type stage add value 'in review' before 'sent';
insert into letter values (3, 'in review', '{draft,"in review"}');
alter type stage rename value 'sent' to 'delivered';
update letter set past = past || '{delivered}'::stage[] where id = 1;
update letter set s = 'in review' where id = 2;
--@check
select * from letter order by id;
--@expect letter: id, s, past
[1, "delivered", {"array": ["draft", "delivered"]}]
[2, "in review", {"array": []}]
[3, "in review", {"array": ["draft", "in review"]}]
