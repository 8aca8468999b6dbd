//! Migrations as their users write them, each on tables of its own, so that many run in one database. Every step is one
//! call to the server: statements in one step share a transaction unless they say otherwise.

/// One migration.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// What it is about.
    pub name: &'static str,
    /// SQL before the first copy.
    pub setup: &'static str,
    /// Published tables of the setup.
    pub tables: &'static [&'static str],
    /// SQL while the gateway streams. `{pub}` stands for the publication.
    pub steps: &'static [&'static str],
    /// It must cause a copy of a table or partition; any other must cause none.
    pub copies: bool,
}

/// Migrations that every version of Postgres takes.
pub const ALL: &[Migration] = &[
    Migration {
        name: "add columns whose values Postgres keeps",
        setup: "create table added(id int primary key, v text); insert into added select n, 'v' || n from generate_series(1, 50) n",
        tables: &["public.added"],
        steps: &[
            "insert into added values (100, 'before')",
            "alter table added add a int, add b numeric(10,2) default 5, add c char(5) default 'ab', add d timestamptz default now(), \
             add e text default current_user, add f boolean default (true and false), add g interval default '1 day', \
             add h numeric(6,1) default 1.25, add i float8 default 0.1, add j int[] default '{1,null}', add k bytea default '\\x00ff', \
             add l jsonb default '{\"a\": 1}', add m text default repeat('x', 100000)",
            "insert into added(id, v) values (101, 'after'); update added set a = 1 where id < 10",
            "begin; insert into added(id) values (102); alter table added add n text default 'in'; insert into added(id) values (103); \
             update added set n = 'changed' where id = 1; commit",
        ],
        copies: false,
    },
    Migration {
        name: "add columns that Postgres fills row by row",
        setup: "create sequence filled_seq start 100; create table filled(id int primary key, v text); \
            insert into filled select n, 'v' || n from generate_series(1, 2000) n",
        tables: &["public.filled"],
        steps: &[
            "begin; insert into filled values (3000, 'in'); alter table filled add u uuid default gen_random_uuid(); \
             insert into filled(id) values (3001); update filled set v = 'w' where id = 1; delete from filled where id = 2; commit",
            "update filled set id = -id where id between 10 and 20; insert into filled(id, v) values (2, 'again')",
            "alter table filled add s bigint default nextval('filled_seq'), add t int generated always as identity",
            "update filled set v = 'x' where id between 100 and 110; delete from filled where id between 200 and 300",
            "create domain filled_kind as int default 3 check (value > 0); alter table filled add k filled_kind",
            "alter table filled add r text default random()::text; alter table filled drop r",
        ],
        copies: true,
    },
    Migration {
        name: "seats: evaluated defaults inside a busy transaction",
        setup: "create sequence stamp_seq start 100; create table seat(id int primary key); insert into seat values (1), (2)",
        tables: &["public.seat"],
        steps: &[
            "begin; insert into seat values (3); alter table seat add column ready boolean default (true and false), \
             add column who text default current_user, add column stamp bigint default nextval('stamp_seq'), \
             add column made timestamptz default '2024-01-01 00:00:00+02', add column span interval default '1 day'::interval; \
             insert into seat(id, ready) values (4, true); update seat set stamp = -1 where id = 1; commit",
        ],
        copies: true,
    },
    Migration {
        name: "swap names of columns and tables",
        setup: "create table swapped(id int primary key, a text, b text); insert into swapped values (1, 'a', 'b'); \
            create table left_hand(id int primary key, v text); insert into left_hand values (1, 'left'); \
            create table right_hand(id int primary key, v text); insert into right_hand values (1, 'right'); create schema elsewhere",
        tables: &["public.swapped", "public.left_hand", "public.right_hand"],
        steps: &[
            "begin; update swapped set a = 'a1'; alter table swapped rename a to tmp; alter table swapped rename b to a; \
             alter table swapped rename tmp to b; update swapped set a = 'new' where id = 1; insert into swapped(id, a, b) values (2, 'A', 'B'); commit",
            "alter table swapped rename to was_swapped",
            "insert into was_swapped values (3, 'B3', 'A3')",
            "begin; alter table left_hand rename to t; alter table right_hand rename to left_hand; alter table t rename to right_hand; \
             insert into left_hand values (2, 'is right'); insert into right_hand values (2, 'is left'); commit",
            "alter table left_hand set schema elsewhere; insert into elsewhere.left_hand values (3, 'moved')",
            "alter schema elsewhere rename to \"El.se\"; update \"El.se\".left_hand set v = 'there'",
            "alter table was_swapped rename a to \"A\"",
            "update was_swapped set \"A\" = 'upper' where id = 1",
        ],
        copies: false,
    },
    Migration {
        name: "hostile identifiers",
        setup: "create table \"select from\"(\"group\" int primary key, \"a\"\"b\" text, \"c.d\" text, \"e f?\" text, \"$1\" text, \"'q'\" text, \":x\" int); \
            insert into \"select from\" values (1, 'w', 'x', 'y', 'z', 'q', 1)",
        tables: &["public.select from"],
        steps: &[
            "update \"select from\" set \"a\"\"b\" = 'changed' where \"group\" = 1",
            "alter table \"select from\" rename column \"e f?\" to \"order\"",
            "insert into \"select from\" values (3, 'w3', 'x3', 'y3', 'z3', 'q3', 3)",
            "alter table \"select from\" add \"new \"\"col\" text default 'it''s'",
        ],
        copies: false,
    },
    Migration {
        name: "drop columns, types, schemas",
        setup: "create type gone_kind as enum ('a'); create schema gone_schema; \
            create table loses(id int primary key, a text, b text, k gone_kind, c text); insert into loses values (1, 'a', 'b', 'a', 'c'); \
            create index loses_b on loses(b, c); create table gone_schema.inner_t(id int primary key); insert into gone_schema.inner_t values (1); \
            create table dropped_t(id int primary key); insert into dropped_t values (1)",
        tables: &["public.loses", "gone_schema.inner_t", "public.dropped_t"],
        steps: &[
            "begin; alter table loses drop a; insert into loses values (2, 'b2', 'a', 'c2'); commit",
            "drop type gone_kind cascade",
            "insert into loses values (3, 'b3', 'c3')",
            "alter table loses drop b; update loses set c = 'c9' where id = 1",
            "drop schema gone_schema cascade",
            "begin; insert into dropped_t values (2); drop table dropped_t; commit",
        ],
        copies: false,
    },
    Migration {
        name: "drop a table and make another of its name",
        setup: "create table notice(id int primary key, body text); insert into notice values (1, 'first life'), (2, 'first life')",
        tables: &["public.notice"],
        steps: &[
            "update notice set body = 'x' where id = 1",
            "begin; drop table notice; create table notice(id int primary key, body text, prio int); \
             alter publication {pub} add table notice; insert into notice values (2, 'second life', 1); commit",
            "insert into notice values (9, 'second life', 2)",
        ],
        copies: true,
    },
    Migration {
        name: "types that print the same",
        setup: "create table widened(id int primary key, v varchar(10), n numeric(10,2), t varchar(3)[]); \
            insert into widened values (1, 'abc', 1.10, '{a}'), (2, '', 0, null)",
        tables: &["public.widened"],
        steps: &[
            "alter table widened alter v type text, alter n type numeric",
            "insert into widened values (3, repeat('x', 50), 12345.678, '{b}')",
            "alter table widened alter v type varchar; alter table widened alter v set not null; alter table widened alter v set default 'z'",
        ],
        copies: false,
    },
    Migration {
        name: "types that are made anew",
        setup: "create table rewritten(id int primary key, a int, v text, ts timestamp, c char(5)); \
            insert into rewritten select n, n, 'v' || n, '2024-01-01', 'ab' from generate_series(1, 500) n",
        tables: &["public.rewritten"],
        steps: &[
            "begin; insert into rewritten values (1000, 1, 'x', '2024-02-02', 'c'); alter table rewritten alter a type int using a + 100; \
             insert into rewritten values (1001, 2, 'y', '2024-02-03', 'd'); update rewritten set v = 'z' where id = 5; commit",
            "update rewritten set a = a + 1 where id < 10; delete from rewritten where id = 11",
            "alter table rewritten alter v type text using upper(v)",
            "alter table rewritten alter a type bigint",
            "alter table rewritten alter ts type timestamptz using ts at time zone 'UTC'",
            "alter table rewritten alter c type text",
            "insert into rewritten values (2000, 9000000000, 'new', '2024-03-03 00:00:00+00', 'wide text')",
        ],
        copies: true,
    },
    Migration {
        name: "a zone without a rewrite",
        setup: "create table zoned(id int primary key, ts timestamp); insert into zoned values (1, '2024-01-01 10:00'), (2, null)",
        tables: &["public.zoned"],
        steps: &[
            "set timezone = 'UTC'; alter table zoned alter ts type timestamptz",
            "reset timezone; insert into zoned values (3, '2024-05-05 00:00:00+00')",
        ],
        copies: true,
    },
    Migration {
        name: "enums, composites and domains",
        setup: "create type phase as enum ('new', 'done'); create type pair as (a int, b int); \
            create table typed(id int primary key, p phase, hist phase[], q pair, n int); \
            insert into typed values (1, 'new', '{new}', '(1,2)', 5), (2, 'done', '{done,new}', '(3,4)', 6)",
        tables: &["public.typed"],
        steps: &[
            "alter type phase add value 'on hold' before 'done'",
            "insert into typed values (3, 'on hold', '{\"on hold\"}', null, 7)",
            "alter type phase rename value 'done' to 'finished'",
            "insert into typed values (4, 'finished', '{}', '(5,6)', 8)",
            "alter type pair add attribute c text",
            "insert into typed values (5, 'new', null, '(7,8,x)', 9)",
            "create domain small as int; alter table typed alter n type small",
            "update typed set n = 10 where id = 1",
        ],
        copies: true,
    },
    Migration {
        name: "tables come and go with the publication",
        setup: "create table comes(id int primary key, v text); insert into comes select n, 'v' from generate_series(1, 1000) n; \
            create table leaves_it(id int primary key, v text); insert into leaves_it values (1, 'x')",
        tables: &["public.leaves_it"],
        steps: &[
            "begin; insert into comes values (-1, 'before'); alter publication {pub} add table comes; insert into comes values (-2, 'after'); \
             update comes set v = 'w' where id = 1; commit",
            "delete from comes where id = 2; update comes set id = 5000 where id = 3",
            "alter publication {pub} drop table leaves_it",
            "insert into leaves_it values (2, 'unseen')",
            "alter publication {pub} add table leaves_it",
            "insert into leaves_it values (3, 'seen')",
            "begin; create table fresh(id int primary key, v text); insert into fresh values (1, 'a'); \
             alter publication {pub} add table fresh; insert into fresh values (2, 'b'); commit; insert into fresh values (3, 'c')",
            "begin; create table selected as select n as id, 'v' || n as v from generate_series(1, 100) n; \
             alter table selected add primary key (id); alter publication {pub} add table selected; update selected set v = 'u' where id = 7; commit",
        ],
        copies: true,
    },
    Migration {
        name: "column lists and row filters",
        setup: "create table listed(id int primary key, a text, b text); insert into listed select n, 'a' || n, 'b' || n from generate_series(1, 300) n; \
            create table filtered(id int primary key, keep int); insert into filtered select n, n % 2 from generate_series(1, 300) n",
        tables: &["public.listed", "public.filtered"],
        steps: &[
            "alter publication {pub} drop table listed; alter publication {pub} add table listed (id, a)",
            "insert into listed values (1000, 'x', 'y'); update listed set b = 'hidden' where id = 1",
            "alter publication {pub} drop table listed; alter publication {pub} add table listed",
            "update listed set b = 'shown' where id = 2",
            "alter publication {pub} drop table filtered; alter publication {pub} add table filtered where (id > 100)",
            "insert into filtered values (1000, 5), (-5, 5); update filtered set keep = 9 where id in (50, 150)",
        ],
        copies: true,
    },
    Migration {
        name: "partitions come and go",
        setup: "create table parted(id int, k int, v text, primary key (id, k)) partition by list (k); \
            create table parted_1 partition of parted for values in (1); create table parted_2 partition of parted for values in (2); \
            create table parted_4(v text, k int not null, junk int, id int not null, primary key (id, k)); alter table parted_4 drop junk; \
            insert into parted_4 select 'w' || n, 4, n from generate_series(1, 500) n; \
            insert into parted select n, 1 + n % 2, 'v' || n from generate_series(1, 500) n",
        tables: &["public.parted"],
        steps: &[
            "create table parted_3 partition of parted for values in (3)",
            "insert into parted values (1, 3, 'three'), (2, 3, 'three')",
            "alter table parted attach partition parted_4 for values in (4)",
            "update parted set v = 'touched' where k = 4 and id < 50; insert into parted values (9000, 4, 'new'); delete from parted where k = 4 and id = 60",
            "update parted set k = 2 where id = 4 and k = 1",
            "truncate parted_2",
            "insert into parted values (7, 2, 'again')",
            "alter table parted detach partition parted_1",
            "insert into parted_1 values (7000, 1, 'unseen')",
            "alter table parted add extra int default 7",
            "insert into parted values (11, 3, 'x', 1)",
            "begin; alter table parted detach partition parted_3; insert into parted_3 values (55, 3, 'unseen', 0); \
             alter table parted attach partition parted_3 for values in (3); commit",
            "drop table parted_2",
            "create table parted_5 (like parted including all); insert into parted_5 values (1, 5, 'five', 5); \
             alter table parted attach partition parted_5 for values in (5)",
        ],
        copies: true,
    },
    Migration {
        name: "indexes",
        setup: "create table indexed(id int primary key, a text, b int, c int); insert into indexed select n, 'a', n, n from generate_series(1, 100) n; \
            create index indexed_b on indexed(b)",
        tables: &["public.indexed"],
        steps: &[
            "create index indexed_a on indexed(a, b)",
            "create index concurrently indexed_c on indexed(c)",
            "drop index indexed_b",
            "create unique index indexed_u on indexed(b, c); create index on indexed(lower(a)); create index on indexed(c) where b > 5",
            "alter table indexed rename b to b2",
            "reindex table indexed",
            "drop index concurrently indexed_c",
            "insert into indexed values (1000, 'z', 1, 2)",
            "alter table indexed drop column a",
        ],
        copies: false,
    },
    Migration {
        name: "identities, rewrites that change nothing, and what is not a change",
        setup: "create table idle(id int primary key, v text); insert into idle select n, repeat('v', 3000) from generate_series(1, 50) n",
        tables: &["public.idle"],
        steps: &[
            "alter table idle replica identity full",
            "update idle set v = v || '!' where id = 1; update idle set id = 1000 where id = 2",
            "alter table idle replica identity default",
            "vacuum full idle",
            "cluster idle using idle_pkey",
            "analyze idle",
            "comment on table idle is 'words'; alter table idle alter v set statistics 100; alter table idle set (fillfactor = 90)",
            "create temporary table passing(id int); alter table passing add v text; drop table passing",
            "create table private(id int); alter table private add v text; drop table private",
            "create materialized view seen as select count(*) n from idle; refresh materialized view seen; drop materialized view seen",
            "do $$ begin if exists (select from pg_available_extensions where name = 'pgcrypto') then \
             create extension pgcrypto; drop extension pgcrypto; end if; end $$",
            "begin; savepoint s; alter table idle add w text default 'never'; rollback to s; insert into idle values (2000, 'kept'); commit",
            "begin; alter table idle add w text; rollback",
            "begin; insert into idle values (2001, 'a'); savepoint s; alter table idle add w text default 'w'; insert into idle values (2002, 'b', 'x'); \
             release s; alter table idle rename w to w2; insert into idle values (2003, 'c', 'y'); commit",
        ],
        copies: false,
    },
    Migration {
        name: "generated columns become ordinary",
        setup: "create table invoice(id int generated always as identity primary key, net numeric(8,2), \
            gross numeric(8,2) generated always as (net * 1.2) stored, tail text); insert into invoice(net, tail) values (10.00, 't1')",
        tables: &["public.invoice"],
        steps: &[
            "insert into invoice(net, tail) values (20.00, 't2')",
            "alter table invoice alter column gross drop expression",
            "insert into invoice(net, gross, tail) values (1, 99.99, 't3')",
            "update invoice set gross = 0.50 where id = 1",
            "insert into invoice overriding system value values (900, 2, 2.40, 't900')",
        ],
        copies: true,
    },
    Migration {
        name: "what stands beside a table",
        setup: "create table beside(id int primary key, a int, v text); insert into beside select n, n, 'v' || n from generate_series(1, 50) n; \
            create table beside_too(id int primary key, a int); insert into beside_too values (1, 1); create schema aside; \
            create table aside.inner_t(id int primary key, v text); insert into aside.inner_t values (1, 'a')",
        tables: &["public.beside", "public.beside_too", "aside.inner_t"],
        steps: &[
            // A constraint of one name on two tables.
            "alter table beside add constraint positive check (a > 0); alter table beside_too add constraint positive check (a > 0)",
            "alter table beside drop constraint positive; insert into beside values (100, -1, 'x')",
            "alter table beside add constraint once unique (a); alter table beside_too add constraint once_too unique (a)",
            "begin; alter table beside drop constraint once, add constraint once unique (v); update beside set v = 'w' where id = 1; commit",
            // Commands inside of commands.
            "create policy own on beside using (id < 10); alter table beside enable row level security; drop policy own on beside; \
             alter table beside disable row level security",
            "do $$ begin execute 'alter table beside add inside text default ''in'' '; insert into beside values (101, 101, 'x1', 'y'); \
             execute 'alter table beside_too rename a to b'; end $$",
            "begin; comment on publication {pub} is 'sync'; alter table beside add c1 int default 1; comment on table beside is 'words'; \
             insert into beside(id, a, v) values (102, 102, 'z'); comment on publication {pub} is 'sync again'; commit",
            "alter schema aside rename to asunder; insert into asunder.inner_t values (2, 'b')",
            "begin; alter table beside rename v to tmp; alter table beside rename tmp to v; commit",
            "begin; alter table beside rename to elsewhere_named; insert into elsewhere_named(id, a, v) values (103, 103, 'q'); \
             alter table elsewhere_named rename to beside; commit",
            "alter table beside add more1 int, add more2 text default 'g', drop c1, alter v set default 'd'",
        ],
        copies: false,
    },
    Migration {
        name: "what a column list leaves out",
        setup: "create table narrow(id int primary key, a text, b text); insert into narrow select n, 'a', 'b' from generate_series(1, 50) n",
        tables: &["public.narrow"],
        steps: &[
            "begin; alter publication {pub} drop table narrow; alter publication {pub} add table narrow (id, a); commit",
            "alter table narrow add hidden text default 'h'; alter table narrow rename b to c; alter table narrow drop c",
            "insert into narrow values (100, 'x', 'y'); update narrow set a = 'z' where id = 1",
        ],
        copies: true,
    },
    Migration {
        name: "all that a role or an extension had",
        setup: "do $$ begin if not exists (select from pg_roles where rolname = 'leaver') then create role leaver; end if; \
            if exists (select from pg_available_extensions where name = 'citext') then create extension citext; \
            else create domain citext as text; end if; end $$; \
            create table of_leaver(id int primary key); alter table of_leaver owner to leaver; insert into of_leaver values (1); \
            create table extended(id int primary key, c citext, v text); insert into extended values (1, 'C', 'v')",
        tables: &["public.of_leaver", "public.extended"],
        steps: &[
            "insert into of_leaver values (2); insert into extended values (2, 'D', 'w')",
            "drop owned by leaver cascade",
            "do $$ begin if exists (select from pg_extension where extname = 'citext') then drop extension citext cascade; \
             else drop domain citext cascade; end if; end $$",
            "insert into extended values (3, 'x')",
        ],
        copies: false,
    },
    Migration {
        name: "vectors that are no arrays, and json that is deep",
        setup: "create table vectors(id int primary key, v int2vector, o oidvector, d jsonb, e json); \
            insert into vectors values (1, '1 2 3', '4 5', (repeat('[', 3000) || repeat(']', 3000))::jsonb, \
            (repeat('{\"a\":', 1000) || '1' || repeat('}', 1000))::json), (2, '', '', null, null)",
        tables: &["public.vectors"],
        steps: &[
            "insert into vectors values (3, '7', '8 9', (repeat('[', 3001) || '1' || repeat(']', 3001))::jsonb, null)",
            "update vectors set v = '1 1 1' where id = 2; update vectors set o = '6' where id = 1",
            "alter table vectors add w int2vector default '4 5 6'; insert into vectors(id, w) values (4, '9')",
        ],
        copies: false,
    },
    Migration {
        name: "a domain over a column's type, and back",
        setup: "create domain whole as int; create table domained(id int primary key, n int, b boolean); \
            insert into domained values (1, 5, true), (2, null, false)",
        tables: &["public.domained"],
        steps: &[
            "alter table domained alter n type whole; insert into domained values (3, 7, true)",
            "alter table domained alter n type int; insert into domained values (4, 8, true)",
        ],
        copies: true,
    },
    Migration {
        name: "a default that leaves no trace",
        setup: "create table traceless(id int primary key, v text); insert into traceless select n, 'v' from generate_series(1, 50) n",
        tables: &["public.traceless"],
        steps: &[
            "begin; alter table traceless add w float default random(); alter table traceless alter w drop default; commit",
            "insert into traceless values (100, 'x', 0.5)",
        ],
        copies: true,
    },
    Migration {
        name: "a generated column comes and goes",
        setup: "create table doubled(id int primary key, net int); insert into doubled values (1, 10), (2, 20)",
        tables: &["public.doubled"],
        steps: &[
            "alter table doubled add twice int generated always as (net * 2) stored",
            "insert into doubled(id, net) values (3, 30); update doubled set net = 11 where id = 1",
            "alter table doubled drop twice; insert into doubled values (4, 40)",
        ],
        // Postgres rewrites the table; that the column made so is in no mirror is not looked at.
        copies: true,
    },
    Migration {
        name: "prepared transactions",
        setup: "create table later(id int primary key, v text); insert into later values (1, 'a')",
        tables: &["public.later"],
        steps: &[
            "begin; insert into later values (2, 'b'); alter table later add w text default 'w'; insert into later values (3, 'c', 'x'); \
             prepare transaction 'migration'",
            "commit prepared 'migration'",
            "insert into later values (4, 'd', 'y')",
            "begin; alter table later add never text; prepare transaction 'undone'",
            "rollback prepared 'undone'",
            "insert into later values (5, 'e', 'z')",
        ],
        copies: false,
    },
    Migration {
        name: "roles and settings that must not matter",
        setup: "create table plain(id int primary key, v text); insert into plain values (1, 'a')",
        tables: &["public.plain"],
        steps: &[
            "do $$ begin if not exists (select from pg_roles where rolname = 'migrator') then create role migrator; end if; end $$; \
             alter table plain owner to migrator; grant all on schema public to migrator",
            "set role migrator; alter table plain add a timestamptz default '2024-03-10 00:00:00+00'",
            "set datestyle = 'SQL, DMY'; set timezone = 'America/New_York'; set bytea_output = 'escape'; set extra_float_digits = -10; \
             set intervalstyle = 'iso_8601'; alter table plain add b timestamptz default '2024-03-10 00:00:00+00', add c float8 default 0.1234567890123, \
             add d interval default '1 day 2 hours', add e bytea default '\\x00ff'",
            "reset all; reset role",
            "begin isolation level serializable; alter table plain add f text default 'f'; commit",
            "begin isolation level repeatable read; select 1; alter table plain rename f to g; insert into plain(id, g) values (7, 'g'); commit",
            "set session_replication_role = replica; alter table plain add h int default 8",
            "reset session_replication_role; insert into plain(id, h) values (9, 1)",
        ],
        copies: false,
    },
];
