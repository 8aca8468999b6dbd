//! An archive in a temporary directory, or in the bucket of a real server when `RINDLE_TEST_STORE` is `bucket`, behind a
//! store that fails on demand.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rindle_proto::ids::{Generation, Position, SegmentNo, Seq, Timeline};

use crate::bucket_server::{BucketServer, Manners};
use crate::fs::DirStore;
use crate::layout::{GenerationKeys, Key};
use crate::log::Log;
use crate::reader::{ReadError, ReadFrom, ReadStep, Reader};
use crate::s3::S3Store;
use crate::store::Store;
use crate::takeover::Taken;
use crate::testkit::{FlakyStore, Source, SourceTxn, generation_record};
use crate::{Archive, Writer};

pub(super) const ONE: Timeline = Timeline(1);

pub(super) struct Env {
    place: Place,
    pub(super) flaky: FlakyStore,
    pub(super) archive: Archive,
    pub(super) log: Log,
}

/// Where the objects lie as files.
enum Place {
    Directory(tempfile::TempDir),
    Bucket(BucketServer),
}

impl Place {
    async fn new() -> (Self, Arc<dyn Store>) {
        if Env::in_bucket() {
            let server = BucketServer::start(Manners::Careful).unwrap();
            let store = S3Store::new(&server.settings().unwrap()).unwrap();
            return (Self::Bucket(server), Arc::new(store));
        }
        // Loops over hundreds of archives wait for the disk only; memory answers the same calls.
        let memory = Path::new("/dev/shm");
        let directory = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        }
        .unwrap();
        let store = DirStore::new(&directory.path().join("archive"));
        (Self::Directory(directory), Arc::new(store))
    }
}

impl Env {
    pub(super) fn in_bucket() -> bool {
        std::env::var("RINDLE_TEST_STORE").is_ok_and(|it| it == "bucket")
    }

    pub(super) async fn new() -> Self {
        let (place, store) = Place::new().await;
        let flaky = FlakyStore::new(store);
        let archive = Archive::with_store(Arc::new(flaky.clone()), &"app".parse().unwrap());
        archive
            .create_generation(&generation_record(generation()))
            .await
            .unwrap();
        let log = archive.log(generation());
        Self {
            place,
            flaky,
            archive,
            log,
        }
    }

    /// A log as another process sees it: nothing cached.
    pub(super) fn fresh_log(&self) -> Log {
        self.archive.log(generation())
    }

    pub(super) async fn take_over(&self) -> Taken {
        self.fresh_log().take_over(ONE).await.unwrap()
    }

    pub(super) fn root(&self) -> PathBuf {
        match &self.place {
            Place::Directory(directory) => directory.path().join("archive"),
            Place::Bucket(server) => server.files(),
        }
    }

    pub(super) fn is_bucket(&self) -> bool {
        matches!(self.place, Place::Bucket(_))
    }

    pub(super) fn path(&self, key: &Key) -> PathBuf {
        self.root().join(key.as_str())
    }

    pub(super) fn keys(&self) -> &GenerationKeys {
        &self.log.keys
    }

    pub(super) fn segment_path(&self, segment: u64) -> PathBuf {
        self.path(&self.keys().segment(SegmentNo(segment)))
    }

    /// Raises the boundary and deletes what lies behind it, fences too if told.
    pub(super) fn trim(&self, boundary: u64) {
        let json = crate::objects::to_json(&serde_json::json!({ "boundary": boundary }));
        std::fs::write(self.path(&self.keys().boundary()), json).unwrap();
        for segment in 1..=boundary {
            let _ = std::fs::remove_file(self.segment_path(segment));
        }
    }

    /// Everything a reader from the start ends with.
    pub(super) async fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        let mut reader = self.fresh_log().reader(ReadFrom::Start);
        contents.follow(&mut reader).await.unwrap();
        contents
    }
}

pub(super) fn generation() -> Generation {
    "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap()
}

pub(super) fn start() -> Position {
    Position::start(generation())
}

/// Appends whole transactions, each in a segment of its own.
pub(super) async fn append(writer: &mut Writer, source: &mut Source, txns: &[u64]) {
    for txn in txns {
        source.txn(SourceTxn(*txn), 1);
        writer.append(source.take()).await.unwrap();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an operator moves directories, nothing durable"
)]
pub(super) fn move_to(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap();
}

/// What a reader was given, less what it was told to discard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The frame that the reader began behind.
    pub(super) after: Seq,
    /// Payload texts with the frame's number.
    pub(super) frames: Vec<(Seq, String)>,
    pub(super) discards: usize,
    pub(super) ticks: usize,
    pub(super) at: Position,
}

impl Contents {
    pub(super) async fn follow(&mut self, reader: &mut Reader) -> Result<(), ReadError> {
        loop {
            match reader.next().await? {
                ReadStep::End => return Ok(()),
                ReadStep::Tick { .. } => self.ticks += 1,
                ReadStep::Discard { to, .. } => {
                    self.discards += 1;
                    self.at = to;
                    self.frames.retain(|frame| frame.0 <= to.seq);
                }
                ReadStep::Frames { bytes, end, .. } => {
                    self.at = end;
                    self.push(bytes);
                }
            }
        }
    }

    fn push(&mut self, bytes: bytes::Bytes) {
        let mut reader = rindle_proto::frame::FrameReader::new();
        reader.push(bytes);
        while let Some(frame) = reader.next_frame().unwrap() {
            let next = self.after.0 + self.frames.len() as u64 + 1;
            assert_eq!(frame.seq.0, next, "numbers go on");
            self.frames.push((frame.seq, text(&frame.payload)));
        }
        assert!(reader.is_empty());
    }

    pub(super) fn texts(&self) -> Vec<&str> {
        self.frames.iter().map(|frame| frame.1.as_str()).collect()
    }
}

/// `2.1` for part 1 of transaction 2, `copy` for a copy's frames.
fn text(payload: &[u8]) -> String {
    let payload = String::from_utf8_lossy(payload);
    let Some((_, text)) = payload.split_once("transaction ") else {
        return "copy".to_owned();
    };
    let (text, _) = text.split_once(';').unwrap();
    text.replace(" part ", ".")
}
