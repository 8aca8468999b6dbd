//! Random logs against a model of ordered maps: every commit and every crash leaves what the model says.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rindle_proto::verify::TableDigest;

use super::*;

/// One table's rows by key; keys are integers or pairs, rendered so that they sort.
type Rows = BTreeMap<String, Vec<V>>;

#[derive(Clone, Debug)]
enum Step {
    /// Operations by choice numbers, part boundaries, and how many parts arrive before the stream breaks.
    Txn(Vec<(u8, u16, u16)>, Vec<usize>, Option<usize>),
    Commit,
    Rollback,
    Crash,
    Image,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ops = prop::collection::vec((0u8..8, any::<u16>(), any::<u16>()), 0..12);
    let cuts = prop::collection::vec(0usize..12, 0..3);
    let txn = (ops, cuts, prop::option::weighted(0.2, 0usize..3));
    let step = prop_oneof![
        8 => txn.prop_map(|(ops, cuts, broken)| Step::Txn(ops, cuts, broken)),
        3 => Just(Step::Commit),
        1 => Just(Step::Rollback),
        1 => Just(Step::Crash),
        1 => Just(Step::Image),
    ];
    prop::collection::vec(step, 1..40)
}

/// The source: what is in it, and the frames that say how it came to be.
struct Source {
    env: Env,
    tables: [Rows; 2],
    history: Vec<(Seq, [Rows; 2])>,
    frames: Vec<Frame>,
}

fn key_of(table: usize, row: &[V]) -> Vec<V> {
    match table {
        0 => vec![row[0].clone()],
        _ => vec![row[1].clone(), row[0].clone()],
    }
}

fn new_row(table: usize, a: u16, b: u16) -> Vec<V> {
    let word = ["", "007", "1e5", "long text that is not a number"][usize::from(b % 4)];
    match table {
        0 => vec![
            V::Int(i64::from(a % 50) - 25),
            if b.is_multiple_of(5) {
                V::Null
            } else {
                text(word)
            },
            if b.is_multiple_of(7) {
                text("NaN")
            } else {
                V::Real(f64::from(b) / 8.0)
            },
            V::Int(i64::from(b % 2)),
        ],
        _ => vec![
            text(&format!("k{}", a % 6)),
            V::Int(i64::from(a % 4)),
            text(word),
        ],
    }
}

impl Source {
    fn new() -> Self {
        let rows: Vec<_> = (0..6u16).map(|a| (1, new_row(0, a * 3, a))).collect();
        let env = Env::with(&two_tables(), &rows);
        let first = rows
            .into_iter()
            .map(|(_, row)| (format!("{:?}", key_of(0, &row)), row));
        let tables = [first.collect(), Rows::new()];
        let history = vec![(Seq(2), tables.clone())];
        Self {
            env,
            tables,
            history,
            frames: Vec::new(),
        }
    }

    /// An operation that the present rows allow, made in the model too.
    fn op(&mut self, (verb, a, b): (u8, u16, u16)) -> O {
        let at = usize::from(b % 2);
        let id = at as u32 + 1;
        let rows = &mut self.tables[at];
        let mut fresh = new_row(at, a, b);
        let old = rows
            .values()
            .nth(usize::from(a) % rows.len().max(1))
            .cloned();
        let name = |row: &[V]| format!("{:?}", key_of(at, row));
        let Some(old) = old.filter(|_| verb > 1) else {
            let known = rows.insert(name(&fresh), fresh.clone());
            return match known {
                Some(_) => O::Update(id, fresh),
                None => O::Insert(id, fresh),
            };
        };
        let key = key_of(at, &old);
        match verb {
            2 => {
                self.tables.iter_mut().for_each(Rows::clear);
                O::Truncate(vec![2, 1])
            }
            3 => {
                rows.remove(&name(&old));
                O::Delete(id, key)
            }
            4 if !rows.contains_key(&name(&fresh)) => {
                rows.remove(&name(&old));
                let sent = mask(&mut fresh, &old, b, &[]);
                rows.insert(name(&fresh), fresh);
                O::Rekey(id, key, sent)
            }
            _ => {
                let keys: &[usize] = if at == 0 { &[0] } else { &[1, 0] };
                keys.iter()
                    .for_each(|column| fresh[*column] = old[*column].clone());
                let sent = mask(&mut fresh, &old, if verb > 6 { 0 } else { b }, keys);
                rows.insert(name(&fresh), fresh);
                O::Update(id, sent)
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Txn(choices, cuts, broken) => self.txn(choices, cuts, *broken),
            Step::Commit => {
                self.env.mirror.commit().unwrap();
            }
            Step::Rollback => {
                self.env.mirror.rollback().unwrap();
                self.catch_up();
            }
            Step::Crash => {
                let path = self.env.mirror.path().to_path_buf();
                let empty = Mirror::open(
                    self.env.dir.path().join("other.db"),
                    MirrorOptions::default(),
                );
                self.env.mirror = empty.unwrap();
                self.env.mirror = Mirror::open(path, MirrorOptions::default()).unwrap();
                self.check();
                self.catch_up();
            }
            Step::Image => {
                let path = self.env.dir.path().join("image.db");
                image::write(&mut self.env.mirror, &path).unwrap();
                image::prove(&path).unwrap();
                std::fs::remove_file(path).unwrap();
            }
        }
        self.check();
    }

    fn txn(&mut self, choices: &[(u8, u16, u16)], cuts: &[usize], broken: Option<usize>) {
        let before = (self.tables.clone(), self.env.log.writer.position());
        let ops: Vec<O> = choices.iter().map(|choice| self.op(*choice)).collect();
        let parts = self.env.log.parts(&ops, cuts);
        let arrive = broken.filter(|n| *n < parts.len());
        for part in &parts[..arrive.unwrap_or(parts.len())] {
            self.env.mirror.apply(part, &mut NoBulk).unwrap();
        }
        if arrive.is_some() {
            // The gateway died here, and the next one's fence dropped what there was of the transaction.
            self.env.mirror.discard().unwrap();
            self.tables = before.0;
            self.env.log.writer = FrameWriter::new(before.1);
            return;
        }
        let seq = parts.last().unwrap().seq;
        self.history.push((seq, self.tables.clone()));
        self.frames.extend(parts);
    }

    fn catch_up(&mut self) {
        for frame in &self.frames {
            self.env.mirror.apply(frame, &mut NoBulk).unwrap();
        }
    }

    /// The file holds what the source held at the file's own cursor.
    fn check(&self) {
        let reader = self.env.reader();
        let stored = stored(&reader, Path::new("m.db")).unwrap().unwrap();
        let at = stored.cursor.position.seq;
        assert_eq!(Some(stored.cursor), self.env.mirror.cursor());
        let (_, tables) = self.history.iter().find(|(seq, _)| *seq == at).unwrap();
        for (table, rows) in stored.schema.tables.iter().zip(tables) {
            let columns = format!("SELECT * FROM {}", ddl::quote(&table.mirror_name()));
            let mut found = select(&reader, &columns);
            let mut expected: Vec<_> = rows.values().cloned().collect();
            let order = |row: &Vec<V>| format!("{row:?}");
            found.sort_by_key(order);
            expected.sort_by_key(order);
            assert_eq!(found, expected);
            let mut digest = TableDigest::default();
            for row in &expected {
                let mut bytes = Vec::new();
                put(&mut bytes, row);
                digest.add_row(&bytes);
            }
            assert_eq!(digest::table(&reader, table).unwrap(), digest);
        }
    }
}

/// The row as an update sends it: some cells that are not of `keys` are left as they were.
fn mask(fresh: &mut [V], old: &[V], bits: u16, keys: &[usize]) -> Vec<V> {
    let mut sent = fresh.to_vec();
    // The first two columns hold the keys of both tables.
    for at in (2..fresh.len()).filter(|at| bits >> at & 1 == 1 && !keys.contains(at)) {
        fresh[at] = old[at].clone();
        sent[at] = V::Same;
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn mirror_equals_the_model_after_every_step(steps in steps()) {
        let mut source = Source::new();
        for step in &steps {
            source.step(step);
        }
        source.env.mirror.commit().unwrap();
        source.check();
        prop_assert_eq!(
            source.env.mirror.position().map(|position| position.seq),
            source.history.last().map(|(seq, _)| *seq)
        );
    }
}
