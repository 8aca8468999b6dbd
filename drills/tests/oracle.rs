//! The oracle itself: on a mirror made by hand it sees nothing, and it sees each planted difference.

use std::path::Path;

use rindle_drills::{
    oracle,
    postgres::{Server, Session},
    run_dir::RunDir,
};
use rusqlite::Connection;

const SOURCE: &str = r#"
create domain short as text;
create table public.plain(id int primary key, t text, n numeric, f float8, b bytea, d short, a int[], c char(4), j json);
insert into plain values
  (1, '007', 1.10, 1, '\x0012', '1e5', '{1,NULL}', 'ab', '{"k":  1}'),
  (2, null, 'NaN', 'NaN', '', null, '[2:3]={4,5}', null, 'null');
create schema other;
create table other.twins(v text, w int);
alter table other.twins replica identity full;
insert into other.twins values ('x', 1), ('x', 1), ('y', null);
create table filtered(id int primary key, open bool, hidden text);
insert into filtered values (1, true, 'h'), (2, false, 'h');
create table part(id int, k int, primary key (id, k)) partition by list (k);
create table part_1 partition of part for values in (1);
create table part_2 partition of part for values in (2);
insert into part values (1, 1), (2, 2);
create publication pub for table plain, other.twins, filtered (id, open) where (open), part;
"#;

const MIRROR: &str = r#"
create table _rindle_columns(table_name TEXT, column_name TEXT, pg_type_oid INTEGER);
create table plain(id BIGINT, t TEXT, n TEXT, f REAL, b TEXT, d TEXT, a TEXT, c TEXT, j TEXT);
insert into plain values (1, '007', '1.10', 1.0, '0012', '1e5', '[1, null]', 'ab  ', '{"k":  1}');
insert into plain values (2, null, 'NaN', 'NaN', '', null, '[4,5]', null, 'null');
create table "other.twins"(v TEXT, w BIGINT);
insert into "other.twins" values ('x', 1), ('x', 1), ('y', null);
create table filtered(id BIGINT, open BOOLEAN);
insert into filtered values (1, 1);
create table part(id BIGINT, k BIGINT);
insert into part values (1, 1), (2, 2);
"#;

/// What each planted change of the mirror must be told as.
const PLANTED: [(&str, &str); 13] = [
    (
        "update plain set t = '07' where id = 1",
        "plain [integer 1].t",
    ),
    (
        "update plain set n = '1.1' where id = 1",
        "plain [integer 1].n",
    ),
    (
        "update plain set f = NULL where id = 2",
        "plain [integer 2].f",
    ),
    (
        "update plain set b = '12' where id = 1",
        "plain [integer 1].b",
    ),
    (
        "update plain set c = 'ab' where id = 1",
        "plain [integer 1].c",
    ),
    (
        "update plain set j = '{\"k\":1}' where id = 1",
        "plain [integer 1].j",
    ),
    (
        "update plain set a = '[\"1\",null]' where id = 1",
        "plain [integer 1].a",
    ),
    (
        "update plain set j = NULL where id = 2",
        "plain [integer 2].j",
    ),
    ("delete from \"other.twins\" where rowid = 1", "other.twins"),
    (
        "insert into filtered values (2, 0)",
        "filtered [integer 2]: a row that the source",
    ),
    (
        "delete from part where id = 2",
        "part [integer 2 | integer 2]: a row that the mirror lacks",
    ),
    (
        "create table part_1(id BIGINT, k BIGINT)",
        "part_1: a table that is not published",
    ),
    (
        "update _rindle_columns set pg_type_oid = 25 where column_name = 'd'",
        "plain.d: the sidecar",
    ),
];

#[tokio::test]
async fn sees_each_planted_difference() {
    let server = Server::start().await.unwrap();
    let session = server.session("postgres").await.unwrap();
    session.run(SOURCE).await.unwrap();
    let dir = RunDir::new("oracle").unwrap();

    let file = dir.join("good.db");
    make_mirror(&file, &session).await;
    let report = oracle::compare(&session, "pub", &file).await.unwrap();
    assert_eq!(report.differences, 0, "{report}");
    assert_eq!((report.tables, report.rows), (4, 8), "{report}");

    for (n, (change, told)) in PLANTED.into_iter().enumerate() {
        let file = dir.join(&format!("planted-{n}.db"));
        make_mirror(&file, &session).await;
        Connection::open(&file)
            .unwrap()
            .execute_batch(change)
            .unwrap();
        let report = oracle::compare(&session, "pub", &file).await.unwrap();
        assert_eq!(report.differences, 1, "{change}: {report}");
        assert!(report.told[0].contains(told), "{change}: {report}");
    }
}

#[tokio::test]
async fn a_partition_published_by_itself_keeps_its_name() {
    let server = Server::start().await.unwrap();
    let session = server.session("postgres").await.unwrap();
    session.run(SOURCE).await.unwrap();
    session
        .run("create publication leaf for table part_1")
        .await
        .unwrap();
    let tables = oracle::source::tables(&session, "leaf").await.unwrap();
    let names: Vec<_> = tables
        .iter()
        .map(|table| table.mirror_name.as_str())
        .collect();
    assert_eq!(names, ["part_1"]);
}

async fn make_mirror(file: &Path, session: &Session) {
    let mirror = Connection::open(file).unwrap();
    mirror.execute_batch(MIRROR).unwrap();
    for table in oracle::source::tables(session, "pub").await.unwrap() {
        for column in &table.columns {
            let row = (&table.mirror_name, &column.name, column.type_oid);
            mirror
                .execute("insert into _rindle_columns values (?1, ?2, ?3)", row)
                .unwrap();
        }
    }
}
