//! Is the server still the archive's source, and where does its stream start? Pure; protocol rule 9.

use rindle_archive::{CommitKind, LastCommit, Tail};
use rindle_proto::ids::{Lsn, Timeline};

use crate::halt::HaltReason;

/// What the server said, on the session that will start.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// Its timeline.
    pub timeline: Timeline,
    /// How far its WAL is flushed.
    pub flushed: Lsn,
    /// Where it left earlier timelines.
    pub switches: Vec<(Timeline, Lsn)>,
    /// The slot's confirmed position.
    pub confirmed: Lsn,
}

/// Where to start, and whether the first transaction must prove that history is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartAt {
    /// For START_REPLICATION.
    pub lsn: Lsn,
    /// The last archived transaction comes again and must be identical.
    pub proof: bool,
}

/// Decides from the archive's tail and the server's words.
pub(super) fn start_at(
    tail: &Tail,
    last: &LastCommit,
    server: &Server,
) -> Result<StartAt, HaltReason> {
    same_history(tail, last, server)?;
    let end = last.end_lsn.0;
    if server.confirmed >= end {
        return Ok(StartAt {
            lsn: end,
            proof: false,
        });
    }
    match last.kind {
        CommitKind::Txn => Ok(StartAt {
            lsn: last.final_lsn.0,
            proof: true,
        }),
        // There is no transaction to prove. On an older timeline the switch point is the proof.
        CommitKind::CopyDone if last.timeline < server.timeline => Ok(StartAt {
            lsn: end,
            proof: false,
        }),
        CommitKind::CopyDone => {
            let confirmed = server.confirmed;
            let detail =
                format!("the slot stands at {confirmed}, before the first copy's position {end}");
            Err(HaltReason::SourceHistoryDiffers { detail })
        }
    }
}

fn same_history(tail: &Tail, last: &LastCommit, server: &Server) -> Result<(), HaltReason> {
    if last.timeline > server.timeline {
        return Err(HaltReason::TimelineBehind {
            found: server.timeline,
            archived: last.timeline,
        });
    }
    if last.timeline < server.timeline {
        let left = server
            .switches
            .iter()
            .find(|(timeline, _)| *timeline == last.timeline);
        let Some((_, switched)) = left else {
            let detail = format!(
                "timeline {} of the archive is not in the server's history",
                last.timeline
            );
            return Err(HaltReason::SourceHistoryDiffers { detail });
        };
        if *switched < last.end_lsn.0 {
            let (timeline, archived) = (last.timeline, last.end_lsn.0);
            return Err(HaltReason::SourceLostArchived {
                timeline,
                switched: *switched,
                archived,
            });
        }
    }
    if tail.through_timeline == server.timeline && server.flushed < tail.through_lsn {
        let (flushed, through) = (server.flushed, tail.through_lsn);
        let detail =
            format!("the server's WAL ends at {flushed}, the archive has seen it reach {through}");
        return Err(HaltReason::SourceHistoryDiffers { detail });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rindle_proto::body::PgMicros;
    use rindle_proto::ids::{EndLsn, FinalLsn, Generation, Position, SegmentNo};

    fn last(kind: CommitKind, timeline: u32) -> LastCommit {
        let position = Position::start(Generation::from_bytes([1; 16]));
        LastCommit {
            kind,
            position,
            before: position,
            final_lsn: FinalLsn(Lsn(90)),
            end_lsn: EndLsn(Lsn(100)),
            xid: 7,
            commit_time: PgMicros(0),
            timeline: Timeline(timeline),
            segment: SegmentNo(1),
        }
    }

    fn decide(
        kind: CommitKind,
        confirmed: u64,
        change: impl Fn(&mut Server),
    ) -> Result<StartAt, String> {
        let last = last(kind, 1);
        let tail = Tail {
            position: last.position,
            last_commit: Some(last),
            through_lsn: Lsn(120),
            through_timeline: Timeline(1),
            segment: SegmentNo(2),
        };
        let mut server = Server {
            timeline: Timeline(1),
            flushed: Lsn(500),
            switches: vec![],
            confirmed: Lsn(confirmed),
        };
        change(&mut server);
        start_at(&tail, &last, &server).map_err(|reason| reason.name())
    }

    #[test]
    fn starts_at_the_last_commit_never_at_a_tick() {
        for confirmed in [100, 110, 120] {
            let start = decide(CommitKind::Txn, confirmed, |_| {});
            assert_eq!(
                start,
                Ok(StartAt {
                    lsn: Lsn(100),
                    proof: false
                })
            );
        }
    }

    #[test]
    fn a_slot_that_went_back_must_prove_the_last_transaction() {
        let start = decide(CommitKind::Txn, 99, |_| {});
        assert_eq!(
            start,
            Ok(StartAt {
                lsn: Lsn(90),
                proof: true
            })
        );
        assert_eq!(
            decide(CommitKind::CopyDone, 99, |_| {}),
            Err("SourceHistoryDiffers".to_owned())
        );
    }

    #[test]
    fn a_promoted_server_must_hold_what_is_archived() {
        let switched = |at: u64| {
            move |server: &mut Server| {
                server.timeline = Timeline(2);
                server.switches = vec![(Timeline(1), Lsn(at))];
            }
        };
        assert!(decide(CommitKind::Txn, 100, switched(100)).is_ok());
        assert!(decide(CommitKind::CopyDone, 10, switched(100)).is_ok());
        assert_eq!(
            decide(CommitKind::Txn, 100, switched(99)),
            Err("SourceLostArchived".to_owned())
        );
        let unknown = |server: &mut Server| server.timeline = Timeline(3);
        assert_eq!(
            decide(CommitKind::Txn, 100, unknown),
            Err("SourceHistoryDiffers".to_owned())
        );
        let old = |server: &mut Server| server.timeline = Timeline(0);
        assert_eq!(
            decide(CommitKind::Txn, 100, old),
            Err("TimelineBehind".to_owned())
        );
    }

    #[test]
    fn wal_shorter_than_the_archive_saw_is_another_history() {
        let short = |server: &mut Server| server.flushed = Lsn(119);
        assert_eq!(
            decide(CommitKind::Txn, 100, short),
            Err("SourceHistoryDiffers".to_owned())
        );
    }
}
