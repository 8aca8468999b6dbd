//! Random logs of one partitioned table that is migrated, copied anew, and gets and loses partitions, against a model:
//! at every commit the file shows what the model says, whatever waits, breaks off or crashes.

use proptest::prelude::*;

use super::world::{Choice, World};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Operations by choice numbers, part boundaries, how many parts arrive before the stream breaks.
    Txn(Vec<Choice>, Vec<usize>, Option<usize>),
    /// A snapshot: at the very position of the next transaction, or before it.
    Snapshot(bool),
    /// The copy is complete, in a transaction with these operations too.
    Copied(Vec<Choice>, Vec<usize>, Option<usize>),
    /// The parts of the copy are durable.
    Copying(Vec<Choice>),
    /// So many slices are loaded ahead.
    Ahead(usize),
    Commit,
    Rollback,
    Crash,
    /// Goes on from an image.
    Image,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ops = |most| prop::collection::vec((0u8..40, any::<u16>(), any::<u16>()), 0..most);
    let cuts = || prop::collection::vec(0usize..10, 0..3);
    let broken = || prop::option::weighted(0.15, 0usize..3);
    let step = prop_oneof![
        8 => (ops(10), cuts(), broken()).prop_map(|(ops, cuts, broken)| Step::Txn(ops, cuts, broken)),
        3 => any::<bool>().prop_map(Step::Snapshot),
        3 => (ops(4), cuts(), broken()).prop_map(|(ops, cuts, broken)| Step::Copied(ops, cuts, broken)),
        2 => ops(4).prop_map(Step::Copying),
        4 => (1usize..20).prop_map(Step::Ahead),
        2 => Just(Step::Commit),
        1 => Just(Step::Rollback),
        1 => Just(Step::Crash),
        1 => Just(Step::Image),
    ];
    prop::collection::vec(step, 1..40)
}

struct Source {
    env: Env,
    world: World,
    history: Vec<(Seq, World)>,
    frames: Vec<Frame>,
    images: usize,
    announced: Option<Copied>,
    loaded: usize,
}

impl Source {
    fn new() -> Self {
        let world = World::new();
        Self {
            env: Env::with(&world.schema(), &[]),
            history: vec![(Seq(2), world.clone())],
            world,
            frames: Vec::new(),
            images: 0,
            announced: None,
            loaded: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Txn(choices, cuts, broken) => {
                let before = self.world.clone();
                self.txn(before, Vec::new(), choices, cuts, *broken);
            }
            Step::Snapshot(at) => {
                let lsn = self.env.log.lsn + if *at { 10 } else { 5 };
                self.world.take_snapshot(lsn);
            }
            Step::Copied(choices, cuts, broken) => {
                let before = self.world.clone();
                if let Some(it) = self.world.reveal() {
                    let targets = [(it.target, &it.shape)];
                    let says = |copied: &&Copied| {
                        (copied.snapshot.0, copied.targets[0].target.0) == (it.lsn, it.target)
                    };
                    let copied = match self.announced.as_ref().filter(says) {
                        Some(announced) => announced.clone(),
                        None => self.env.log.copied(it.lsn, &targets, &it.rows),
                    };
                    self.txn(before, vec![O::Copied(copied)], choices, cuts, *broken);
                }
            }
            Step::Copying(choices) => {
                if let Some(it) = self.world.clone().reveal() {
                    let targets = [(it.target, &it.shape)];
                    let copied = self.env.log.copied(it.lsn, &targets, &it.rows);
                    self.announced = Some(copied.clone());
                    let before = self.world.clone();
                    self.txn(before, vec![O::Copying(copied)], choices, &[], None);
                }
            }
            Step::Ahead(slices) => {
                self.env.mirror.commit().unwrap();
                for _ in 0..*slices {
                    let (mirror, log) = (&mut self.env.mirror, &mut self.env.log);
                    match mirror.load_ahead(log, &mut || false).unwrap() {
                        Slice::Nothing => break,
                        Slice::Some => self.loaded += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
            Step::Commit => drop(self.env.mirror.commit().unwrap()),
            Step::Rollback => {
                self.env.mirror.rollback().unwrap();
                self.catch_up();
            }
            Step::Crash => {
                self.open(self.env.mirror.path().to_path_buf());
                self.check();
                self.catch_up();
            }
            Step::Image => {
                self.images += 1;
                let path = self
                    .env
                    .dir
                    .path()
                    .join(format!("image-{}.db", self.images));
                image::write(&mut self.env.mirror, &path).unwrap();
                image::prove(&path).unwrap();
                self.open(path);
                self.catch_up();
            }
        }
        self.check();
        assert_eq!(*self.env.mirror.schema(), self.world.schema());
    }

    fn open(&mut self, path: PathBuf) {
        let other = self.env.dir.path().join("other.db");
        self.env.mirror = Mirror::open(other, MirrorOptions::default()).unwrap();
        self.env.mirror = Mirror::open(path, MirrorOptions::default()).unwrap();
    }

    fn txn(
        &mut self,
        before: World,
        mut ops: Vec<O>,
        choices: &[Choice],
        cuts: &[usize],
        broken: Option<usize>,
    ) {
        let position = self.env.log.writer.position();
        for choice in choices {
            ops.extend(self.world.op(*choice));
        }
        let parts = self.env.log.parts(&ops, cuts);
        let arrive = broken.filter(|n| *n < parts.len());
        for part in &parts[..arrive.unwrap_or(parts.len())] {
            self.env.mirror.apply(part, &mut self.env.log).unwrap();
        }
        if arrive.is_some() {
            self.env.mirror.discard().unwrap();
            self.world = before;
            self.env.log.writer = FrameWriter::new(position);
            return;
        }
        let seq = parts.last().unwrap().seq;
        self.history.push((seq, self.world.clone()));
        self.frames.extend(parts);
    }

    fn catch_up(&mut self) {
        for frame in &self.frames {
            self.env.mirror.apply(frame, &mut self.env.log).unwrap();
        }
    }

    fn check(&self) {
        let reader = self.env.reader();
        let stored = stored(&reader, Path::new("m.db")).unwrap().unwrap();
        let at = stored.cursor.position.seq;
        let (_, world) = self.history.iter().find(|(seq, _)| *seq == at).unwrap();
        assert_eq!(stored.schema, world.schema());
        assert_eq!(shown(&reader), [text("p")]);
        let columns: Vec<String> = world
            .shown
            .columns
            .iter()
            .map(|at| format!("c{at}"))
            .collect();
        let sql = format!("SELECT {} FROM p ORDER BY c0", columns.join(", "));
        assert_eq!(select(&reader, &sql), world.seen());
        assert_eq!(
            digest::table(&reader, &stored.schema.tables[0])
                .unwrap()
                .rows,
            world.seen().len() as u64
        );
        let frozen = if world.live { "ready" } else { "frozen" };
        let tables = select(&reader, "SELECT table_name, state FROM _rindle_tables");
        assert_eq!(tables, [[text("p"), text(frozen)]]);
        if awaiting(&stored.schema).is_empty() {
            let pending = select(&reader, "SELECT count(*) FROM _rindle_pending");
            assert_eq!(pending, [[V::Int(0)]]);
        }
        if self.announced.is_none() {
            self.nothing_is_loaded();
        }
    }

    fn nothing_is_loaded(&self) {
        let hidden = "SELECT name FROM sqlite_schema WHERE name LIKE '%\\_load\\_%' ESCAPE '\\'";
        assert_eq!(select(&self.env.reader(), hidden), Vec::<Vec<V>>::new());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn mirror_shows_what_the_model_says_whatever_waits(steps in steps()) {
        let mut source = Source::new();
        for step in &steps {
            source.step(step);
        }
        source.env.mirror.commit().unwrap();
        source.check();
        // In the end everything is copied.
        while source.world.next.is_some() || source.world.shown.leaves.iter().any(|leaf| leaf.2) {
            source.step(&Step::Snapshot(true));
            source.step(&Step::Copied(Vec::new(), Vec::new(), None));
        }
        source.env.mirror.commit().unwrap();
        source.check();
        source.step(&Step::Ahead(1));
        source.nothing_is_loaded();
        prop_assert!(awaiting(source.env.mirror.schema()).is_empty());
    }
}
