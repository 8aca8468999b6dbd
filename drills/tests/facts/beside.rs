//! What nobody announces, because it happens beside the publishing of its schema.

use super::*;

/// What a transaction does to tables of a schema while somebody else publishes it, and nobody announces.
const BESIDE: [&str; 9] = [
    "alter table s.altered add u uuid default gen_random_uuid(), alter v type int using v::int",
    "alter table s.renamed rename to now",
    "alter table s.renamed_column rename v to w",
    "alter table s.moved set schema elsewhere",
    "drop table s.dropped",
    "alter table s.swapped rename to before; create table s.swapped(n text primary key); \
     insert into s.swapped values ('new')",
    "drop table s.again; create table s.again(n text primary key); insert into s.again values ('new')",
    "create table s.part2 partition of s.parted for values from (100) to (200); drop table s.part1",
    "truncate s.emptied; insert into s.emptied values (7, '7')",
];

#[tokio::test]
async fn b3_what_changes_while_its_schema_is_published_is_found() {
    let server = Server::start().await.unwrap();
    let mut setup =
        "create schema s; create schema elsewhere; create table kept(id int primary key); \
         create table s.parted(id int primary key, v text) partition by range (id); \
         create table s.part0 partition of s.parted default; \
         create table s.part1 partition of s.parted for values from (0) to (100); \
         insert into s.parted select n, n from generate_series(1, 20) n;"
            .to_owned();
    for table in [
        "altered",
        "renamed",
        "renamed_column",
        "moved",
        "dropped",
        "swapped",
        "again",
        "emptied",
    ] {
        setup += &format!(
            "create table s.{table}(id int primary key, v text); \
             insert into s.{table} select n, n from generate_series(1, 20) n;"
        );
    }
    let publish = "create publication own for table kept";
    let mut cluster = started(&server, "beside", &setup, publish).await;
    let [before, after] = [
        server.session("beside").await.unwrap(),
        server.session("beside").await.unwrap(),
    ];
    run(&before, "begin").await;
    for sql in BESIDE {
        run(&before, sql).await;
    }
    let publisher = server.session("beside").await.unwrap();
    run(&publisher, "begin").await;
    run(&publisher, "alter publication own add tables in schema s").await;
    run(
        &after,
        "create table s.late(id int primary key, v text); insert into s.late values (1, '1')",
    )
    .await;
    run(&publisher, "commit").await;
    run(&before, "insert into s.now values (21, '21')").await;
    run(&before, "commit").await;
    run(
        &after,
        "alter table s.swapped add c int default 5; insert into s.now values (22, '22'); \
         insert into s.altered(id, v) values (23, 23); insert into s.parted values (150, 'x')",
    )
    .await;
    // An audit comes at once.
    cluster.gateway().unwrap().kill().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let done = async || {
        let tables = tables(&cluster.mirror(0));
        let has = |name: &str| tables.iter().any(|it| it == name);
        Ok(has("s.now") && has("s.before") && has("s.late") && !has("s.dropped"))
    };
    wait::until_true("what nobody announced", READY_WITHIN, done)
        .await
        .unwrap();
    equal(&mut cluster, "beside the publishing").await;
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}
