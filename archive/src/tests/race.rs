//! Gateways that come and go in any order, over a store that fails and lets creates land late. After each step:
//! what was confirmed stays, nothing is doubled, and a reader that follows along sees what a new one sees.

use proptest::prelude::*;
use rindle_proto::ids::Seq;

use super::env::{Contents, Env, ONE};
use crate::testkit::{Faults, Moment, Source, SourceTxn};
use crate::{ReadFrom, Taken};

#[derive(Clone, Copy, Debug)]
enum Step {
    TakeOver {
        gateway: usize,
    },
    /// A gateway appends its next transaction, or one frame of it.
    Append {
        gateway: usize,
        cut: bool,
    },
    Retry {
        gateway: usize,
    },
    Fault(Faults),
    Land,
    Read,
}

struct Gateway {
    taken: Taken,
    source: Source,
    /// The transaction to encode next, and the rest of one that was cut.
    next: u64,
    rest: Option<(u64, u64)>,
    /// Transaction whose last frame is in the pending object.
    pending: Option<u64>,
}

/// Frames of the n-th transaction: the same for all gateways.
fn frames_of(txn: u64) -> u64 {
    txn % 3 + 1
}

struct World {
    env: Env,
    gateways: [Option<Gateway>; 3],
    confirmed: u64,
    reader: crate::Reader,
    seen: Contents,
}

impl World {
    async fn new() -> Self {
        let env = Env::new().await;
        let reader = env.fresh_log().reader(ReadFrom::Start);
        Self {
            env,
            gateways: [None, None, None],
            confirmed: 0,
            reader,
            seen: Contents::default(),
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::TakeOver { gateway } => {
                self.gateways[gateway] = None;
                if let Ok(taken) = self.env.fresh_log().take_over(ONE).await {
                    let next = taken
                        .tail
                        .last_commit
                        .map_or(0, |commit| u64::from(commit.xid))
                        + 1;
                    let source = Source::at(taken.tail.position);
                    self.gateways[gateway] = Some(Gateway {
                        taken,
                        source,
                        next,
                        rest: None,
                        pending: None,
                    });
                }
            }
            Step::Append { gateway, cut } => self.append(gateway, cut).await,
            Step::Retry { gateway } => {
                let Some(gateway) = &mut self.gateways[gateway] else {
                    return;
                };
                if gateway.taken.writer.retry().await.is_ok() {
                    self.confirmed = self.confirmed.max(gateway.pending.take().unwrap_or(0));
                }
            }
            Step::Fault(faults) => self.env.flaky.plan(faults),
            Step::Land => self.env.flaky.land().await,
            Step::Read => {
                let _unavailable = self.seen.follow(&mut self.reader).await;
            }
        }
    }

    async fn append(&mut self, gateway: usize, cut: bool) {
        let Some(gateway) = &mut self.gateways[gateway] else {
            return;
        };
        if gateway.taken.writer.is_pending() {
            return;
        }
        let (txn, from) = gateway.rest.take().unwrap_or((gateway.next, 1));
        let parts = frames_of(txn);
        let upto = if cut && from < parts { from } else { parts };
        (from..=upto).for_each(|part| gateway.source.part(SourceTxn(txn), part, parts));
        let commits = (upto == parts).then_some(txn);
        match commits {
            Some(_) => gateway.next = txn + 1,
            None => gateway.rest = Some((txn, upto + 1)),
        }
        match gateway.taken.writer.append(gateway.source.take()).await {
            Ok(_) => self.confirmed = self.confirmed.max(commits.unwrap_or(0)),
            Err(_) => gateway.pending = commits,
        }
    }

    /// Everything at rest: what holds whatever happened.
    async fn check(&mut self) {
        self.env.flaky.plan(Faults::Never);
        let contents = self.env.contents().await;
        let expected = (1..)
            .flat_map(|txn| (1..=frames_of(txn)).map(move |part| format!("{txn}.{part}")))
            .take(contents.frames.len());
        assert!(
            contents
                .frames
                .iter()
                .map(|frame| frame.1.clone())
                .eq(expected),
            "{contents:?}"
        );
        let least: u64 = (1..=self.confirmed).map(frames_of).sum();
        assert!(
            contents.frames.len() as u64 >= least,
            "{} confirmed",
            self.confirmed
        );
        self.seen.follow(&mut self.reader).await.unwrap();
        assert_eq!(
            (&self.seen.frames, self.seen.at),
            (&contents.frames, contents.at)
        );
        let head = self.env.fresh_log().head().await.unwrap();
        assert_eq!(head.map_or(Seq(0), |head| head.end.seq), contents.at.seq);
    }
}

fn faults() -> impl Strategy<Value = Faults> {
    let moment = prop_oneof![
        Just(Moment::Before),
        Just(Moment::After),
        Just(Moment::Late)
    ];
    (0u8..4, 1u64..8, moment).prop_map(|(which, call, moment)| match which {
        0 => Faults::ForEver(call, moment),
        1 => Faults::Never,
        _ => Faults::Once(call, moment),
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0usize..3).prop_map(|gateway| Step::TakeOver { gateway }),
        6 => (0usize..3, any::<bool>()).prop_map(|(gateway, cut)| Step::Append { gateway, cut }),
        2 => (0usize..3).prop_map(|gateway| Step::Retry { gateway }),
        2 => faults().prop_map(Step::Fault),
        1 => Just(Step::Land),
        2 => Just(Step::Read),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn confirmed_transactions_stay(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in steps {
                world.step(step).await;
            }
            world.check().await;
            world.step(Step::Land).await;
            world.check().await;
            world.step(Step::TakeOver { gateway: 0 }).await;
            world.step(Step::Append { gateway: 0, cut: false }).await;
            world.check().await;
        });
    }
}
