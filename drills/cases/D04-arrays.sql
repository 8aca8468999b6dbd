Arrays: NULL beside the word NULL, empty beside an empty text, every character that needs a quote, dimensions, bounds.
--@setup
create table basket(id int primary key, names text[], counts bigint[], yes bool[], ratios float8[]);
insert into basket values (1, '{}', '{}', '{}', '{}'), (2, '{""}', '{NULL}', '{f,NULL}', '{NaN,Infinity,-Infinity,0.5}');
create publication shop for table basket;
--@stream
insert into basket values (3, array['NULL', null, 'Null', 'x'], '{1,-2,9223372036854775807}', null, '{1e300,-0,3}');
insert into basket values (4, array['p,q', 'r"s', 't\u', '{v}', ' w ', 'x' || chr(9) || chr(10) || 'y', '', '''', '/'], '{{1,2},{3,NULL}}', '{{t},{f}}', '{NULL}');
insert into basket values (5, null, null, null, null), (6, array['ö', '東京', '🦊'], '[0:1]={7,8}', '{t,t}', '{0.1}');
insert into basket values (7, '[3:4][-1:0]={{a,b},{c,NULL}}', '{-9223372036854775808}', '{f}', '{2.5}');
update basket set names = '{""}', counts = counts || 0::bigint where id = 1;
update basket set names = null where id = 2;
--@check
select * from basket order by id;
--@expect basket: id, names, counts, yes
[1, {"array": [""]}, {"array": [0]}, {"array": []}]
[2, null, {"array": [null]}, {"array": [false, null]}]
[3, {"array": ["NULL", null, "Null", "x"]}, {"array": [1, -2, 9223372036854775807]}, null]
[4, {"array": ["p,q", "r\"s", "t\\u", "{v}", " w ", "x\t\ny", "", "'", "/"]}, {"array": [[1, 2], [3, null]]}, {"array": [[true], [false]]}]
[5, null, null, null]
[6, {"array": ["ö", "東京", "🦊"]}, {"array": [7, 8]}, {"array": [true, true]}]
[7, {"array": [["a", "b"], ["c", null]]}, {"array": [-9223372036854775808]}, {"array": [false]}]
