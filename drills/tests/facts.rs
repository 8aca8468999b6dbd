//! What Postgres does around a schema change, and that the mirror ends equal all the same. Tests are named after their
//! line in designs/002.

mod beside;

use std::{path::Path, time::Duration};

use rindle_drills::{
    cluster::Cluster,
    postgres::{Options, Server, Session, version_from_env},
    wait,
};
use rusqlite::{Connection, OpenFlags};

const READY_WITHIN: Duration = Duration::from_secs(60);
/// A waiter is let by when it has waited for two seconds, and it is looked once a second.
const LET_BY_WITHIN: Duration = Duration::from_secs(20);

/// A cluster whose publication `own` is made by `publish`.
async fn started(server: &Server, name: &str, setup: &str, publish: &str) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let mut cluster = Cluster::new(server, name, name).await.unwrap();
    cluster.session.run(setup).await.unwrap();
    cluster.add_marker(None).await.unwrap();
    cluster.session.run(publish).await.unwrap();
    cluster.publication = "own".to_owned();
    cluster.add_marker(Some("own")).await.unwrap();
    cluster.prepare_as_it_is().await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let first = cluster.add_follower().await.unwrap();
    let follower = cluster.follower(first).unwrap();
    follower.until_ready(READY_WITHIN).await.unwrap();
    cluster
}

async fn run(session: &Session, sql: &str) {
    let done = session.run(sql).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error:#}"));
}

async fn equal(cluster: &mut Cluster, what: &str) {
    let followed = cluster.must_follow(0).await;
    followed.unwrap_or_else(|error| panic!("{what}: {error:#}"));
}

/// Names of the tables that readers of a mirror see.
fn tables(mirror: &Path) -> Vec<String> {
    let sqlite = Connection::open_with_flags(mirror, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let sql = "select name from sqlite_schema where type = 'table' and name not like '\\_rindle\\_%' escape '\\' \
         and name not like 'sqlite%' order by name";
    let mut select = sqlite.prepare(sql).unwrap();
    let names = select.query_map([], |row| row.get(0)).unwrap();
    names.map(Result::unwrap).collect()
}

/// Waits until a status of the gateway has these words.
async fn told(cluster: &Cluster, part: &str, words: &str) {
    let what = format!("{words} in {part}");
    let told = wait::until_true(&what, READY_WITHIN, async || {
        let status = cluster.gateway_status().await?;
        Ok(status[part].to_string().contains(words))
    });
    told.await.unwrap();
}

/// Each: what an open transaction wrote before, the change that does not wait for it, what others write in the new shape,
/// what the open transaction writes then. With `{pub}` for the publication.
const OVERTAKEN: [(&str, &str, &str, &str); 9] = [
    (
        "insert into labelled values (10, 'done', '{done}')",
        "alter type phase rename value 'done' to 'finished'",
        "insert into labelled values (11, 'finished', '{new,finished}')",
        "insert into labelled values (12, 'finished', null); update labelled set p = 'new' where id = 10",
    ),
    (
        // A label that is an old one and a new one.
        "insert into labelled values (20, 'new', '{new}')",
        "begin; alter type phase rename value 'new' to 'older'; alter type phase rename value 'finished' to 'new'; commit",
        "insert into labelled values (21, 'new', '{older}')",
        "insert into labelled values (22, 'older', '{new}')",
    ),
    (
        "insert into composed values (10, '(1,2)')",
        "alter type pair add attribute c int",
        "insert into composed values (11, '(3,4,5)')",
        "insert into composed values (12, '(6,7,8)'); delete from composed where id = 1",
    ),
    (
        "insert into listed values (10, 'a', 'b')",
        "begin; alter publication own drop table listed; alter publication own add table listed (id, a); commit",
        "insert into listed values (11, 'a', 'hidden')",
        "insert into listed values (12, 'a', 'hidden'); update listed set b = 'hidden' where id = 10",
    ),
    (
        "insert into listed values (20, 'a', 'b')",
        "begin; alter publication own drop table listed; alter publication own add table listed; commit",
        "insert into listed values (21, 'a', 'shown')",
        "insert into listed values (22, 'a', 'shown'); update listed set b = 'shown' where id = 20",
    ),
    (
        "alter schema there rename to elsewhere",
        "alter table there.moved rename to renamed",
        "insert into there.renamed values (2)",
        "insert into elsewhere.renamed values (3)",
    ),
    (
        "alter table elsewhere.renamed rename to again",
        "alter schema elsewhere rename to last",
        "create table last.other(id int primary key); alter publication own add table last.other",
        "insert into last.again values (4)",
    ),
    (
        "alter table last.again set schema public",
        "begin; alter schema last rename to other_last; alter table other_last.other rename to renamed; commit",
        "insert into other_last.renamed values (1)",
        "insert into public.again values (5)",
    ),
    (
        "alter table public.again set schema other_last",
        "alter schema other_last rename to home",
        "insert into home.renamed values (2)",
        "insert into home.again values (6)",
    ),
];

const OVERTAKEN_SETUP: &str = "create type phase as enum ('new', 'done'); create type pair as (a int, b int); \
     create table labelled(id int primary key, p phase, hist phase[]); insert into labelled values (1, 'done', '{done,new}'); \
     create table composed(id int primary key, q pair); insert into composed values (1, '(1,2)'), (2, '(3,4)'); \
     create table listed(id int primary key, a text, b text); insert into listed values (1, 'a', 'b'); \
     create schema there; create table there.moved(id int primary key); insert into there.moved values (1)";

/// Rows that were written before such a change come after it, and as text that depends on what the server decoded before.
#[tokio::test]
async fn h1_rows_of_a_transaction_that_a_change_overtook_end_as_the_source_shows_them() {
    let server = Server::start().await.unwrap();
    let publish = "create publication own for table labelled, composed, listed, there.moved";
    let mut cluster = started(&server, "overtaken", OVERTAKEN_SETUP, publish).await;
    let open = server.session("overtaken").await.unwrap();
    for (before, change, others, after) in OVERTAKEN {
        run(&open, "begin").await;
        run(&open, before).await;
        run(&cluster.session, change).await;
        run(&cluster.session, others).await;
        // The server has decoded rows of the new shape before those of the transaction.
        let mark = cluster.mark().await.unwrap();
        cluster.until_marked(0, mark, READY_WITHIN).await.unwrap();
        run(&open, after).await;
        let still = "select count(*) from pg_stat_activity where state = 'idle in transaction' \
             and datname = current_database()";
        assert_eq!(cluster.session.text(still).await.unwrap(), "1");
        run(&open, "commit").await;
        equal(&mut cluster, change).await;
    }
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}

#[tokio::test]
async fn b8_our_own_tables_are_published_with_all_tables_and_never_mirrored() {
    let server = Server::start().await.unwrap();
    let setup = "create table kept(id int primary key, v text); insert into kept values (1, 'a')";
    let publish = "create publication own for all tables";
    let mut cluster = started(&server, "everything", setup, publish).await;
    let ours = "select count(*) from pg_publication_tables where pubname = 'own' and schemaname = 'rindle' \
         and tablename = 'published_schema'";
    assert_eq!(cluster.session.text(ours).await.unwrap(), "1");
    // What we write for it, and take away again, is in the stream; the user's own statement does not fail for it.
    for change in [
        "alter table kept add w text default 'w'",
        "update rindle.published_schema set made_at = made_at - interval '3 days'",
        "delete from rindle.published_schema where id < 0",
        "begin; create table made(id int primary key, v text); insert into made values (1, 'a'); commit",
        "begin; insert into made values (2, 'b'); alter table made rename to made_anew; commit",
    ] {
        run(&cluster.session, change).await;
        equal(&mut cluster, change).await;
    }
    assert_eq!(
        tables(&cluster.mirror(0)),
        ["drill_marker", "kept", "made_anew"]
    );
    let status = cluster.gateway_status().await.unwrap();
    assert!(
        !status["unmirrored"]
            .to_string()
            .contains("published_schema")
    );
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}

#[tokio::test]
async fn h3_a_table_that_is_unlogged_leaves_the_mirror_and_comes_back_whole() {
    let server = Server::start().await.unwrap();
    let setup =
        "create table passing(id int primary key, v text); insert into passing values (1, 'a')";
    let publish = "create publication own for all tables";
    let mut cluster = started(&server, "unlogged", setup, publish).await;
    let sent = "select count(*) from pg_publication_tables where tablename = 'passing'";
    for logged in [false, true] {
        let (word, there) = if logged {
            ("logged", "1")
        } else {
            ("unlogged", "0")
        };
        run(
            &cluster.session,
            &format!(
                "alter table passing set {word}; insert into passing values (2 + {there}, '{word}')"
            ),
        )
        .await;
        assert_eq!(cluster.session.text(sent).await.unwrap(), there);
        equal(&mut cluster, word).await;
        let shown = tables(&cluster.mirror(0)).contains(&"passing".to_owned());
        assert_eq!(shown, logged, "{word}");
    }
    // C4: one that is made unlogged is no part of it either.
    run(
        &cluster.session,
        "create unlogged table scratch(id int primary key); insert into scratch values (1)",
    )
    .await;
    equal(&mut cluster, "an unlogged table").await;
    run(
        &cluster.session,
        "alter table scratch set logged; insert into scratch values (2)",
    )
    .await;
    equal(&mut cluster, "set logged").await;
    assert!(tables(&cluster.mirror(0)).contains(&"scratch".to_owned()));
}

#[tokio::test]
async fn h4_a_table_without_a_key_is_told_and_comes_with_its_key() {
    let server = Server::start().await.unwrap();
    let setup = "create table kept(id int primary key)";
    let publish = "create publication own for all tables";
    let mut cluster = started(&server, "keyless", setup, publish).await;
    run(
        &cluster.session,
        "create table late as select n as id, 'v' || n as v from generate_series(1, 200) n; insert into late values (201, 'w')",
    )
    .await;
    told(&cluster, "unmirrored", "late").await;
    // The stream goes on, and shows nothing of it.
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, READY_WITHIN).await.unwrap();
    assert!(!tables(&cluster.mirror(0)).contains(&"late".to_owned()));
    run(
        &cluster.session,
        "alter table late add primary key (id); update late set v = 'x' where id = 3",
    )
    .await;
    equal(&mut cluster, "a key that came later").await;
    // Made with its rows and its key in one transaction: the rows come under a shape without the key.
    run(
        &cluster.session,
        "begin; create table at_once as select n as id, 'v' || n as v from generate_series(1, 200) n; \
         alter table at_once add primary key (id); update at_once set v = 'x' where id = 3; commit",
    )
    .await;
    equal(&mut cluster, "made with rows and key").await;
    let status = cluster.gateway_status().await.unwrap();
    assert_eq!(status["unmirrored"], serde_json::json!([]), "{status}");
}

const BIG: &str = "create table big(id int primary key, v text, large text); alter table big alter large set storage external; \
     insert into big select n, repeat('v', 250), case when n % 1000 = 0 then repeat(md5(n::text), 100) end \
     from generate_series(1, 300000) n; create table other(id int primary key, v text); insert into other values (1, 'a'); \
     create table gone(id int primary key, v text); insert into gone values (1, 'a')";

/// Waits until an attempt has read rows, and is not at its end.
async fn copying(cluster: &Cluster) {
    let what = "rows of a backfill to be read";
    let read = wait::until_true(what, READY_WITHIN, async || {
        let status = cluster.gateway_status().await?;
        let backfills = status["backfills"].as_array().cloned().unwrap_or_default();
        let rows = |it: &serde_json::Value| it["rows"].as_u64().unwrap_or(0);
        Ok(backfills.iter().any(|it| (1..250_000).contains(&rows(it))))
    });
    read.await.unwrap();
}

/// Waits until somebody waits behind a session of the backfill.
async fn somebody_waits(cluster: &Cluster) {
    let sql = "select count(*) from pg_stat_activity a join pg_stat_activity b on b.pid = any (pg_blocking_pids(a.pid)) \
         where b.application_name like 'rindle-backfill%'";
    let what = "somebody to wait behind the backfill";
    let waits = async || Ok(cluster.session.text(sql).await? != "0");
    wait::until_true(what, READY_WITHIN, waits).await.unwrap();
}

/// The snapshot of a copy holds up every index that is built concurrently, whatever its table; rows change meanwhile.
#[tokio::test]
async fn a8_who_waits_behind_a_backfill_goes_first() {
    let server = Server::start().await.unwrap();
    let publish = "create publication own for table other";
    let mut cluster = started(&server, "yields", BIG, publish).await;
    run(
        &cluster.session,
        "alter publication own add table big; alter publication own add table gone",
    )
    .await;
    copying(&cluster).await;
    let builder = server.session("yields").await.unwrap();
    let built = tokio::spawn(async move {
        builder
            .run("create index concurrently other_v on other(v)")
            .await
    });
    somebody_waits(&cluster).await;
    let built = tokio::time::timeout(LET_BY_WITHIN, built).await;
    built.expect("the index waits no longer").unwrap().unwrap();
    let log = cluster.gateway().unwrap().log();
    assert!(log.contains("waits for it, and goes first"), "{log}");

    // The next attempt: rows change, one table goes, another one is migrated.
    copying(&cluster).await;
    for sql in [
        "update big set v = 'changed' where id % 1000 = 0",
        "update big set large = large || '!' where id % 2000 = 0",
        "update big set id = -id where id % 5000 = 0",
        "begin; delete from big where id = 1; insert into big values (1, 'again', null); commit",
        "drop table gone",
    ] {
        run(&cluster.session, sql).await;
    }
    let altered = cluster
        .session
        .run("alter table big add w text default 'w'");
    let altered = tokio::time::timeout(LET_BY_WITHIN, altered).await;
    altered.expect("the migration waits no longer").unwrap();
    run(
        &cluster.session,
        "insert into big values (-1, 'new', null, 'x')",
    )
    .await;
    equal(&mut cluster, "a backfill that was held up").await;
    assert_eq!(tables(&cluster.mirror(0)), ["big", "drill_marker", "other"]);
}

/// What each does while no gateway reads, so that it reads all of it when the catalog shows the last of it.
const READ_LATE: [&str; 4] = [
    // Rows between the two are not sent.
    "begin isolation level repeatable read; alter publication own drop table u; commit; \
     insert into u values (10, 'not sent'); update u set v = 'not sent' where id = 1; alter publication own add table u; \
     insert into u values (11, 'sent')",
    // A name that comes back.
    "begin isolation level repeatable read; alter table b rename to a; commit; insert into a values (2); \
     alter table a rename to c; insert into c values (3)",
    "begin isolation level repeatable read; alter schema s rename to other; alter table other.inside rename to renamed; commit; \
     alter schema other rename to s; insert into s.renamed values (2)",
    "begin isolation level repeatable read; alter publication own drop table c; commit; insert into c values (4); \
     alter publication own add table c, late; insert into late values (1)",
];

#[tokio::test]
async fn b1_what_strict_transactions_did_is_followed_when_it_is_read_late() {
    let server = Server::start().await.unwrap();
    let setup = "create table u(id int primary key, v text); insert into u values (1, 'first'); \
         create table a(id int primary key); insert into a values (1); create table late(id int primary key); \
         create schema s; create table s.inside(id int primary key); insert into s.inside values (1)";
    let publish = "create publication own for table a, s.inside";
    let mut cluster = started(&server, "late", setup, publish).await;
    // Both were otherwise before.
    run(&cluster.session, "alter publication own add table u").await;
    run(&cluster.session, "alter table a rename to b").await;
    equal(&mut cluster, "what they were before").await;
    for late in READ_LATE {
        cluster.gateway().unwrap().kill().await.unwrap();
        for statement in late.split("; ") {
            run(&cluster.session, statement).await;
        }
        cluster.start_gateway().await.unwrap();
        equal(&mut cluster, late).await;
    }
    // It began before somebody renamed, and renames then.
    let strict = server.session("late").await.unwrap();
    run(&strict, "begin isolation level repeatable read").await;
    run(&strict, "select 1").await;
    run(&cluster.session, "alter table u rename to v").await;
    run(&strict, "alter table v rename to w").await;
    run(&strict, "commit").await;
    run(&cluster.session, "insert into w values (20, 'last')").await;
    equal(&mut cluster, "renamed by two").await;
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}

/// A commit is in the stream before others see it, and long before where it waits for a synchronous standby: what others say
/// meanwhile is older, though they say it later.
#[tokio::test]
async fn b1_a_commit_that_waits_for_its_standby_is_not_seen_by_those_who_speak_later() {
    let options = Options {
        conf: vec![
            "synchronous_standby_names = 'nobody'".to_owned(),
            "synchronous_commit = local".to_owned(),
        ],
        fresh: true,
    };
    let server = Server::start_with(version_from_env(), options)
        .await
        .unwrap();
    let setup = "create type phase as enum ('new', 'done'); create schema s; \
         create table s.labelled(id int primary key, p phase); insert into s.labelled values (1, 'done');";
    let mut cluster = started(
        &server,
        "unseen",
        setup,
        "create publication own for table s.labelled",
    )
    .await;
    let waiting = server.session("unseen").await.unwrap();
    run(&waiting, "set synchronous_commit = on").await;
    run(&waiting, "begin").await;
    run(&waiting, "alter schema s rename to r").await;
    let pid = waiting.text("select pg_backend_pid()").await.unwrap();
    let committing = tokio::spawn(async move { waiting.run("commit").await });
    let is_waiting = format!(
        "select count(*) from pg_stat_activity where pid = {pid} and wait_event = 'SyncRep'"
    );
    wait::until_true(
        "the commit to wait for its standby",
        READY_WITHIN,
        async || Ok(cluster.session.text(&is_waiting).await? == "1"),
    )
    .await
    .unwrap();
    // It is in the stream already, and nobody else sees it.
    for sql in [
        "alter type phase rename value 'new' to 'fresh'",
        "insert into s.labelled values (2, 'fresh')",
        "create table public.other(id int primary key); alter publication own add table public.other",
        "insert into public.other values (1)",
    ] {
        run(&cluster.session, sql).await;
    }
    assert!(!committing.is_finished());
    run(
        &cluster.session,
        "alter system set synchronous_standby_names = ''",
    )
    .await;
    run(&cluster.session, "select pg_reload_conf()").await;
    committing.await.unwrap().unwrap();
    run(
        &cluster.session,
        "insert into r.labelled values (3, 'done')",
    )
    .await;
    equal(&mut cluster, "all that was said").await;
}

/// Whoever makes a table in a schema does not see that somebody else is just publishing the schema, and the other way round:
/// neither announces the table.
#[tokio::test]
async fn b3_a_table_that_is_made_while_its_schema_is_published_is_found() {
    let server = Server::start().await.unwrap();
    let setup =
        "create schema s; create schema t; create schema u; create table kept(id int primary key)";
    let publish = "create publication own for table kept";
    let mut cluster = started(&server, "newcomers", setup, publish).await;
    let maker = server.session("newcomers").await.unwrap();
    // Published while it is made.
    for sql in [
        "begin",
        "create table s.one(id int primary key, v text)",
        "create table s.parted(id int primary key) partition by range (id)",
        "create table s.part partition of s.parted default",
        "insert into s.one values (1, 'before')",
    ] {
        run(&maker, sql).await;
    }
    run(
        &cluster.session,
        "alter publication own add tables in schema s",
    )
    .await;
    run(
        &maker,
        "insert into s.one values (2, 'after'); insert into s.parted values (1)",
    )
    .await;
    run(&maker, "commit").await;
    run(
        &cluster.session,
        "update s.one set v = 'later' where id = 1",
    )
    .await;
    equal(&mut cluster, "published while it is made").await;
    // Made while it is published; rows come afterwards.
    let publisher = server.session("newcomers").await.unwrap();
    run(&publisher, "begin").await;
    run(&publisher, "alter publication own add tables in schema t").await;
    run(&maker, "create table t.two(id int primary key)").await;
    run(&publisher, "commit").await;
    run(&maker, "insert into t.two values (1)").await;
    equal(&mut cluster, "made while it is published").await;
    // The same, and it is gone before anybody asks.
    run(&publisher, "begin").await;
    run(&publisher, "alter publication own add tables in schema u").await;
    run(
        &maker,
        "create table u.gone(id int primary key); create table u.three(id int primary key)",
    )
    .await;
    run(&publisher, "commit").await;
    cluster.gateway().unwrap().kill().await.unwrap();
    run(
        &maker,
        "insert into u.gone values (1); insert into kept values (1)",
    )
    .await;
    run(&maker, "drop table u.gone").await;
    cluster.start_gateway().await.unwrap();
    // No row tells of the other one: the audit finds it.
    let found = async || Ok(tables(&cluster.mirror(0)).contains(&"u.three".to_owned()));
    wait::until_true("the table without rows", READY_WITHIN, found)
        .await
        .unwrap();
    equal(&mut cluster, "without rows").await;
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}

/// It does not see what others have published since, and what it rewrites shows in no shape.
#[tokio::test]
async fn b1_a_strict_transaction_that_is_older_than_the_publishing_is_followed() {
    let server = Server::start().await.unwrap();
    let setup = "create table kept(id int primary key); create schema s; \
         create table x(id int primary key, c int); insert into x select n, n from generate_series(1, 50) n; \
         create table s.y(id int primary key, c int); insert into s.y select n, n from generate_series(1, 50) n";
    let publish = "create publication own for table kept";
    let mut cluster = started(&server, "older", setup, publish).await;
    let strict = server.session("older").await.unwrap();
    for (level, publish, table) in [
        ("repeatable read", "table x", "x"),
        ("serializable", "tables in schema s", "s.y"),
    ] {
        run(&strict, &format!("begin isolation level {level}")).await;
        run(&strict, "select count(*) from kept").await;
        let add = format!("alter publication own add {publish}");
        run(&cluster.session, &add).await;
        equal(&mut cluster, &add).await;
        let rewrite = format!("alter table {table} alter c type int using c * 2");
        run(&strict, &rewrite).await;
        run(&strict, "commit").await;
        equal(&mut cluster, &rewrite).await;
    }
    run(&strict, "begin isolation level repeatable read").await;
    run(&strict, "select count(*) from kept").await;
    run(
        &cluster.session,
        "alter publication own drop table x; alter publication own add table x",
    )
    .await;
    equal(&mut cluster, "published again").await;
    run(
        &strict,
        "alter table x add d int default 7; alter table x rename to z",
    )
    .await;
    run(&strict, "commit").await;
    equal(&mut cluster, "altered and renamed").await;
    run(&strict, "begin isolation level repeatable read").await;
    run(&strict, "select count(*) from kept").await;
    run(
        &cluster.session,
        "create table gone(id int primary key); alter publication own add table gone",
    )
    .await;
    equal(&mut cluster, "one more").await;
    run(&strict, "drop table gone").await;
    run(&strict, "commit").await;
    equal(&mut cluster, "dropped").await;
}
