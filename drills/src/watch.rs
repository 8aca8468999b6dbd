//! The watcher: every 50 ms it asks Postgres how far the slot is acknowledged, then reads from the archive's files how far
//! they go, with code of its own. The first must never be above the second.
//!
//! Of a log object it reads the header, little-endian, as `proto/README.md` describes it:
//!
//! | at | what |
//! |---|---|
//! | 0 | `RNDS` |
//! | 8 | u32, length of the header |
//! | 12 | u32, CRC-32 of the header without these four bytes |
//! | 48 | u64, number of the object |
//! | 56 | u64, epoch of its writer |
//! | 72 | u64, the position up to which the log holds everything |
//! | 200 | u64, length of what follows the header |

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use crate::postgres::Session;

const EVERY: Duration = Duration::from_millis(50);
const HEADER: usize = 384;
const LAST_MOVE_WITHIN: Duration = Duration::from_secs(30);

/// What a watcher saw.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub samples: u64,
    /// Samples in which the acknowledged position had moved.
    pub moves: u64,
    pub violations: Vec<String>,
    slots: BTreeMap<String, Track>,
}

/// What was last seen of one slot.
#[derive(Debug, Clone, Copy)]
struct Track {
    confirmed: u64,
    /// Process that streams from it.
    pid: Option<u32>,
}

/// One row of `pg_replication_slots`.
#[derive(Debug, Clone)]
struct Slot {
    name: String,
    confirmed: u64,
    pid: Option<u32>,
}

#[derive(Debug)]
pub struct Watch {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Seen>>,
}

impl Watch {
    /// Watches every slot of `source`; `archive` is the folder of the filesystem store.
    pub fn start(port: u16, database: &str, source: &str, archive: &Path) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = watch(
            port,
            database.to_owned(),
            source.to_owned(),
            archive.to_owned(),
            stopped,
        );
        Self {
            stop,
            task: tokio::spawn(task),
        }
    }

    /// Ends the watch; it must have seen the position move, and never too far.
    pub async fn finish(self) -> Result<Seen> {
        // A watcher that has ended already tells why below.
        let _ = self.stop.send(());
        let seen = self.task.await??;
        ensure!(
            seen.violations.is_empty(),
            "acknowledged past the archive: {:?}",
            seen.violations
        );
        ensure!(
            seen.moves > 0,
            "the acknowledged position never moved in {} samples",
            seen.samples
        );
        Ok(seen)
    }
}

async fn watch(
    port: u16,
    database: String,
    source: String,
    archive: PathBuf,
    mut stopped: oneshot::Receiver<()>,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut session = Session::open(port, &database).await?;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        if let Some(until) = last {
            // The position moves every 10 s at the latest; a drill that ended sooner waits for that.
            if seen.moves > 0 || Instant::now() > until {
                return Ok(seen);
            }
            ticks.tick().await;
        } else {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = &mut stopped => last = Some(Instant::now() + LAST_MOVE_WITHIN),
            }
        }
        // A drill may restart Postgres; the watch goes on when it is back.
        match confirmed(&session, &source).await {
            Ok(slots) => seen.look(slots, &archive.join(&source))?,
            Err(_) => {
                if let Ok(again) = Session::open(port, &database).await {
                    session = again;
                }
            }
        }
    }
}

impl Seen {
    /// Before a first copy is archived whole nothing may be acknowledged, but an attempt that died is followed by one
    /// with a new slot of the same name. That one stands elsewhere, without an acknowledgement; so until then only a
    /// position that moves under one and the same walsender counts.
    fn look(&mut self, slots: Vec<Slot>, source: &Path) -> Result<()> {
        self.samples += 1;
        for Slot {
            name,
            confirmed,
            pid,
        } in slots
        {
            // Read after the slot: a log that grew meanwhile only makes the check milder by that much.
            let Some(archived) = archived_of_slot(source, &name)? else {
                continue;
            };
            let now = Track { confirmed, pid };
            let before = self.slots.insert(name.clone(), now).unwrap_or(now);
            let moved = before.confirmed != confirmed;
            self.moves += u64::from(moved);
            let same_session = pid.is_some() && before.pid == pid;
            if confirmed > archived && (archived > 0 || (moved && same_session)) {
                let words =
                    format!("{name}: {confirmed:X} is acknowledged, {archived:X} is archived");
                self.violations.push(words);
            }
        }
        Ok(())
    }
}

async fn confirmed(session: &Session, source: &str) -> Result<Vec<Slot>> {
    let prefix = format!("rindle_{}_", source.replace('-', "_"));
    let rows = session
        .rows(&format!(
            "select slot_name, confirmed_flush_lsn - '0/0'::pg_lsn, active_pid from pg_replication_slots
             where starts_with(slot_name, '{prefix}') and not temporary and confirmed_flush_lsn is not null"
        ))
        .await?;
    rows.iter()
        .map(|row| {
            let (name, lsn) = (
                row.get(0).context("a slot's name")?,
                row.get(1).context("its lsn")?,
            );
            Ok(Slot {
                name: name.to_owned(),
                confirmed: lsn.parse()?,
                pid: row.get(2).map(str::parse).transpose()?,
            })
        })
        .collect()
}

/// How far the log of the generation that a slot belongs to goes; `None` while the archive is out of reach.
fn archived_of_slot(source: &Path, slot: &str) -> Result<Option<u64>> {
    let Ok(generations) = fs::read_dir(source.join("g")) else {
        return Ok(None);
    };
    for generation in generations.flatten() {
        let name = generation.file_name().to_string_lossy().to_lowercase();
        let tail = &name[name.len().saturating_sub(16)..];
        if slot.ends_with(tail) {
            return archived(&generation.path().join("log"));
        }
    }
    Ok(None)
}

/// The epoch of each object of a log folder, in their order.
pub fn epochs(log: &Path) -> Result<Vec<u64>> {
    let read = |(number, file): (u64, PathBuf)| {
        let bytes = fs::read(&file)?;
        through_lsn(number, &bytes)?;
        Ok(u64_at(&bytes, 56))
    };
    objects(log).into_iter().map(read).collect()
}

fn objects(log: &Path) -> BTreeMap<u64, PathBuf> {
    let entries = fs::read_dir(log).into_iter().flatten();
    let mut numbers = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(number) = name
            .strip_suffix(".seg")
            .and_then(|n| n.parse::<u64>().ok())
        {
            numbers.insert(number, entry.path());
        }
    }
    numbers
}

/// The position up to which a log folder holds everything: 0 before its first object.
pub fn archived(log: &Path) -> Result<Option<u64>> {
    let mut numbers = objects(log);
    // What retention gave up is read by nobody.
    let boundary = boundary(log)?;
    numbers.retain(|number, _| *number > boundary);
    // A hole ends the log for every reader.
    let Some(first) = numbers.keys().next().copied() else {
        return Ok(Some(0));
    };
    let last = (first..)
        .take_while(|n| numbers.contains_key(n))
        .last()
        .unwrap_or(first);
    let Ok(bytes) = fs::read(&numbers[&last]) else {
        return Ok(None);
    };
    through_lsn(last, &bytes).map(Some)
}

fn boundary(log: &Path) -> Result<u64> {
    let Ok(record) = fs::read(log.with_file_name("boundary.json")) else {
        return Ok(0);
    };
    let record: serde_json::Value = serde_json::from_slice(&record)?;
    record["boundary"]
        .as_u64()
        .context("no boundary in boundary.json")
}

fn through_lsn(number: u64, bytes: &[u8]) -> Result<u64> {
    ensure!(
        bytes.len() >= HEADER && bytes.starts_with(b"RNDS"),
        "object {number} has no header"
    );
    ensure!(
        u32_at(bytes, 8) as usize == HEADER,
        "object {number} has a header of {} bytes",
        u32_at(bytes, 8)
    );
    let crc = crc32(&[&bytes[..12], &bytes[16..HEADER]].concat());
    ensure!(
        crc == u32_at(bytes, 12),
        "object {number}: the header's checksum is wrong"
    );
    ensure!(
        u64_at(bytes, 48) == number,
        "object {number} says it is {}",
        u64_at(bytes, 48)
    );
    if bytes.len() as u64 != HEADER as u64 + u64_at(bytes, 200) {
        bail!("object {number} has {} bytes", bytes.len());
    }
    Ok(u64_at(bytes, 72))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}

/// The CRC-32 of zip and gzip.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xEDB8_8320
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(number: u64, through: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + 5];
        bytes[..4].copy_from_slice(b"RNDS");
        bytes[8..12].copy_from_slice(&384_u32.to_le_bytes());
        bytes[48..56].copy_from_slice(&number.to_le_bytes());
        bytes[72..80].copy_from_slice(&through.to_le_bytes());
        bytes[200..208].copy_from_slice(&5_u64.to_le_bytes());
        let crc = crc32(&[&bytes[..12], &bytes[16..HEADER]].concat());
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_log_ends_at_its_first_hole() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        let log = tempfile::tempdir().unwrap();
        assert_eq!(archived(log.path()).unwrap(), Some(0));
        for (number, through) in [(7, 70), (8, 80), (10, 100)] {
            fs::write(
                log.path().join(format!("{number:020}.seg")),
                object(number, through),
            )
            .unwrap();
        }
        assert_eq!(archived(log.path()).unwrap(), Some(80));
        fs::write(
            log.path().join(format!("{:020}.seg", 8)),
            &object(8, 80)[..HEADER],
        )
        .unwrap();
        assert!(archived(log.path()).is_err(), "a cut object was believed");
    }

    #[test]
    fn a_position_above_the_archive_is_seen() {
        let source = tempfile::tempdir().unwrap();
        let log = source.path().join("g/01ABCDEFGH0123456789ABCDEF/log");
        fs::create_dir_all(&log).unwrap();
        fs::write(log.join(format!("{:020}.seg", 1)), object(1, 100)).unwrap();
        let slot = |confirmed, pid| Slot {
            name: "rindle_app_0123456789abcdef".to_owned(),
            confirmed,
            pid,
        };
        let mut seen = Seen::default();
        for confirmed in [90, 100, 101] {
            seen.look(vec![slot(confirmed, Some(1))], source.path())
                .unwrap();
        }
        let found = (seen.samples, seen.moves, seen.violations.len());
        assert_eq!(found, (3, 2, 1), "{seen:?}");

        // Nothing is archived: a new slot may stand anywhere, under one session it must not move.
        fs::write(log.join(format!("{:020}.seg", 1)), object(1, 0)).unwrap();
        let mut seen = Seen::default();
        for (confirmed, pid) in [(90, Some(1)), (95, None), (99, Some(2)), (99, Some(2))] {
            seen.look(vec![slot(confirmed, pid)], source.path())
                .unwrap();
        }
        assert!(seen.violations.is_empty(), "{seen:?}");
        seen.look(vec![slot(100, Some(2))], source.path()).unwrap();
        assert_eq!(seen.violations.len(), 1, "{seen:?}");
    }
}
