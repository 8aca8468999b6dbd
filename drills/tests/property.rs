//! Random rows of every type, in random transactions, by copy, by stream and by image: the mirror is equal, and every
//! type and special value was there.

use std::{collections::BTreeSet, time::Duration};

use rindle_drills::{
    cluster::Cluster,
    postgres::{Server, Session},
    rng::Rng,
    samples::{self, Sample},
};

const READY_WITHIN: Duration = Duration::from_secs(60);
const COPIED: i64 = 300;
const TRANSACTIONS: usize = 150;

/// Which special values a way of the rows has carried: column and number of the value.
type Covered = BTreeSet<(usize, usize)>;

struct Generator {
    rng: Rng,
    samples: Vec<Sample>,
    keys: i64,
    /// For each column the special value that is next: each gets its turn.
    next: Vec<usize>,
}

impl Generator {
    fn new(rng: Rng) -> Self {
        let samples = samples::all();
        Self {
            rng,
            next: vec![0; samples.len()],
            samples,
            keys: 0,
        }
    }

    fn table(&self) -> String {
        let columns: Vec<String> = self
            .samples
            .iter()
            .enumerate()
            .map(|(i, s)| format!("c{i} {}", s.sql_type))
            .collect();
        format!(
            "create table every_type(id bigint primary key, {})",
            columns.join(", ")
        )
    }

    /// An expression for a column, and the special value that it is.
    fn value(&mut self, column: usize) -> (String, Option<(usize, usize)>) {
        let sample = &self.samples[column];
        if self.rng.one_in(2) {
            return (sample.random(&mut self.rng), None);
        }
        let number = self.next[column] % sample.special_count();
        self.next[column] += 1;
        (sample.special(number), Some((column, number)))
    }

    fn insert(&mut self, covered: &mut Covered) -> String {
        self.keys += 1;
        let mut values = vec![self.keys.to_string()];
        for column in 0..self.samples.len() {
            let (value, special) = self.value(column);
            values.push(value);
            covered.extend(special);
        }
        format!("insert into every_type values ({});", values.join(", "))
    }

    fn change(&mut self, covered: &mut Covered) -> String {
        let key = self.rng.between(1, self.keys.max(1));
        match self.rng.below(10) {
            0 => format!("delete from every_type where id = {key};"),
            1 => format!("update every_type set id = -id where id = {key};"),
            2..=4 => self.insert(covered),
            _ => {
                // An update that meets no row covers nothing, so only inserts are counted.
                let column = self.rng.below(self.samples.len() as u64) as usize;
                let value = self.samples[column].random(&mut self.rng);
                format!("update every_type set c{column} = {value} where id in ({key}, -{key});")
            }
        }
    }

    /// A transaction with a savepoint; what is rolled back is not counted as covered.
    async fn transact(&mut self, session: &Session, covered: &mut Covered) {
        let mut kept = Covered::new();
        let mut sql = String::from("begin;");
        for _ in 0..=self.rng.below(3) {
            sql.push_str(&self.change(&mut kept));
        }
        if self.rng.one_in(2) {
            let mut undone = Covered::new();
            sql.push_str("savepoint s;");
            sql.push_str(&self.change(&mut undone));
            if self.rng.one_in(2) {
                sql.push_str("rollback to s;");
            } else {
                kept.extend(undone);
            }
        }
        if self.rng.one_in(8) {
            sql.push_str("rollback");
        } else {
            sql.push_str("commit");
            covered.extend(kept);
        }
        session.run(&sql).await.unwrap();
    }

    fn not_covered(&self, covered: &Covered) -> Vec<String> {
        let mut missing = Vec::new();
        for (column, sample) in self.samples.iter().enumerate() {
            for number in 0..sample.special_count() {
                if !covered.contains(&(column, number)) {
                    missing.push(format!(
                        "{} {}",
                        sample.sql_type,
                        sample.special_name(number)
                    ));
                }
            }
        }
        missing
    }
}

#[tokio::test]
async fn rows_of_every_type_are_equal_by_copy_stream_and_image() {
    let server = Server::start().await.unwrap();
    let mut cluster = Cluster::new(&server, "postgres", "every").await.unwrap();
    let session = server.session("postgres").await.unwrap();
    let rng = Rng::from_env("every type");
    let mut generator = Generator::new(rng);
    session.run(samples::TYPES).await.unwrap();
    session.run(&generator.table()).await.unwrap();

    let mut by_copy = Covered::new();
    while generator.keys < COPIED {
        let insert = generator.insert(&mut by_copy);
        session.run(&insert).await.unwrap();
    }
    cluster.prepare(&["public.every_type"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let first = cluster.add_follower().await.unwrap();
    cluster
        .follower(first)
        .unwrap()
        .until_ready(READY_WITHIN)
        .await
        .unwrap();
    let report = cluster.must_be_equal(first).await.unwrap();
    println!("by copy: {report}");

    let mut by_stream = Covered::new();
    // Which values are rolled back is chance, so a few more may be needed until each was committed.
    let mut transactions = 0;
    while transactions < TRANSACTIONS
        || (transactions < 4 * TRANSACTIONS && !generator.not_covered(&by_stream).is_empty())
    {
        generator.transact(&session, &mut by_stream).await;
        transactions += 1;
    }
    let report = cluster.must_be_equal(first).await.unwrap();
    println!("by stream: {report}");

    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    let report = cluster.must_be_equal(second).await.unwrap();
    println!("by image: {report}");

    println!(
        "covered: {} by copy, {} by stream",
        by_copy.len(),
        by_stream.len()
    );
    for (way, covered) in [("copy", &by_copy), ("stream", &by_stream)] {
        let missing = generator.not_covered(covered);
        assert!(
            missing.is_empty(),
            "by {way} nothing was seen of: {missing:?}"
        );
    }
}

/// The generator and the oracle agree with Postgres before any program of ours is asked.
#[tokio::test]
async fn the_oracle_reads_every_sample() {
    let server = Server::start().await.unwrap();
    let session = server.session("postgres").await.unwrap();
    let rng = Rng::from_env("samples");
    let mut generator = Generator::new(rng);
    session.run(samples::TYPES).await.unwrap();
    session.run(&generator.table()).await.unwrap();
    let mut covered = Covered::new();
    for _ in 0..60 {
        generator.transact(&session, &mut covered).await;
    }
    for (column, sample) in generator.samples.iter().enumerate() {
        for number in 0..sample.special_count() {
            let value = sample.special(number);
            let id = 100_000 + column * 100 + number;
            let insert = format!("insert into every_type(id, c{column}) values ({id}, {value})");
            session.run(&insert).await.unwrap();
        }
    }
    session
        .run("create publication all_types for table every_type")
        .await
        .unwrap();
    let dir = rindle_drills::run_dir::RunDir::new("samples").unwrap();
    let file = dir.join("model.db");
    rindle_drills::oracle::write_model(&session, "all_types", &file)
        .await
        .unwrap();
}
