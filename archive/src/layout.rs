//! Every key of the archive. Numbers have twenty digits, so that names sort as numbers do.
//!
//! ```text
//! {source}/current.json                              pointer, compare-and-set
//! {source}/probe/{ulid}/{n}                          mint's probe of a bucket, deleted when it ends
//! {source}/g/{generation}/generation.json            created once, at mint
//! {source}/g/{generation}/e/{epoch}.json             created once, one a takeover; never deleted
//! {source}/g/{generation}/log/{segment}.seg          created once, no holes
//! {source}/g/{generation}/bulk/{epoch}-{n}/{part}.rows   created once
//! {source}/g/{generation}/schema/{seq}.json          created once: what was believed at a commit; a cache
//! {source}/g/{generation}/images/{segment}-{seq}-{ulid}/{part}.part, manifest.json (last), verified.json
//! {source}/g/{generation}/boundary.json              compare-and-set: trimmed up to here, and pins
//! {source}/g/{generation}/proved/{place}.json          created once: proof of a bucket it was not minted in
//! {source}/g/{generation}/producer.json              compare-and-set: the producer's last run; decides nothing
//! {source}/g/{generation}/clock/{ulid}               written to learn the store's time, and deleted
//! ```

use std::fmt;

use rindle_proto::body::Attempt;
use sha2::{Digest as _, Sha256};

use rindle_proto::ids::{Digest, Epoch, Generation, SegmentNo, Seq, SourceName};

/// Name of an object, with `/` between its parts; no part is empty or starts with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// The key as the store sees it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names in one source.
#[derive(Clone, Debug)]
pub(crate) struct SourceKeys(String);

impl SourceKeys {
    pub(crate) fn new(source: &SourceName) -> Self {
        Self(source.as_str().to_owned())
    }

    pub(crate) fn current(&self) -> Key {
        Key(format!("{}/current.json", self.0))
    }

    /// Directory of the generations; the names in it are the generations.
    pub(crate) fn generations(&self) -> Key {
        Key(format!("{}/g", self.0))
    }

    /// Objects of a mint's probe: deleted when it ends.
    pub(crate) fn probe(&self, id: ulid::Ulid) -> Key {
        Key(format!("{}/probe/{id}", self.0))
    }

    pub(crate) fn probed(&self, id: ulid::Ulid, number: u32) -> Key {
        Key(format!("{}/{number:03}", self.probe(id)))
    }

    pub(crate) fn generation(&self, generation: Generation) -> GenerationKeys {
        GenerationKeys(format!("{}/g/{generation}", self.0))
    }
}

/// Names in one generation.
#[derive(Clone, Debug)]
pub(crate) struct GenerationKeys(String);

impl GenerationKeys {
    pub(crate) fn record(&self) -> Key {
        self.under("generation.json")
    }

    /// The proof of a bucket that the generation was not minted in.
    pub(crate) fn proved(&self, place: &str) -> Key {
        let digest = Digest(Sha256::digest(place).into()).to_hex();
        self.under(&format!("proved/{}.json", &digest[..16]))
    }

    pub(crate) fn boundary(&self) -> Key {
        self.under("boundary.json")
    }

    pub(crate) fn epochs(&self) -> Key {
        self.under("e")
    }

    pub(crate) fn epoch(&self, epoch: Epoch) -> Key {
        self.under(&format!("e/{:020}.json", epoch.0))
    }

    pub(crate) fn log(&self) -> Key {
        self.under("log")
    }

    pub(crate) fn segment(&self, segment: SegmentNo) -> Key {
        self.under(&format!("log/{}", segment_name(segment)))
    }

    pub(crate) fn bulk(&self, attempt: Attempt, part: u32) -> Key {
        let Attempt { epoch, number } = attempt;
        self.under(&format!(
            "bulk/{:020}-{number:010}/{part:010}.rows",
            epoch.0
        ))
    }

    pub(crate) fn checkpoints(&self) -> Key {
        self.under("schema")
    }

    pub(crate) fn checkpoint(&self, seq: Seq) -> Key {
        self.under(&format!("schema/{:020}.json", seq.0))
    }

    pub(crate) fn producer(&self) -> Key {
        self.under("producer.json")
    }

    pub(crate) fn clocks(&self) -> Key {
        self.under("clock")
    }

    /// Written to learn the store's time, and deleted.
    pub(crate) fn clock(&self, id: ulid::Ulid) -> Key {
        self.under(&format!("clock/{id}"))
    }

    pub(crate) fn images(&self) -> Key {
        self.under("images")
    }

    pub(crate) fn image(&self, id: &str) -> ImageKeys {
        ImageKeys(format!("{}/images/{id}", self.0))
    }

    fn under(&self, name: &str) -> Key {
        Key(format!("{}/{name}", self.0))
    }
}

/// Names in one image.
#[derive(Clone, Debug)]
pub(crate) struct ImageKeys(String);

impl ImageKeys {
    pub(crate) fn part(&self, number: u32) -> Key {
        Key(format!("{}/{number:010}.part", self.0))
    }

    /// A slice by its name; none for anything else that lies there.
    pub(crate) fn slice(&self, name: &str) -> Option<Key> {
        name.ends_with(".part")
            .then(|| Key(format!("{}/{name}", self.0)))
    }

    pub(crate) fn directory(&self) -> Key {
        Key(self.0.clone())
    }

    pub(crate) fn manifest(&self) -> Key {
        Key(format!("{}/manifest.json", self.0))
    }

    pub(crate) fn verified(&self) -> Key {
        Key(format!("{}/verified.json", self.0))
    }
}

/// Name of an image: its base first, so that names sort by base.
pub(crate) fn image_id(segment: SegmentNo, seq: Seq, id: ulid::Ulid) -> String {
    format!("{:020}-{:020}-{id}", segment.0, seq.0)
}

pub(crate) fn segment_name(segment: SegmentNo) -> String {
    format!("{:020}.seg", segment.0)
}

/// The number in a name of `log/` or `e/`; `None` for anything else that lies there.
pub(crate) fn number_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    let valid = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
    valid.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_design() {
        let generation: Generation = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let source = SourceKeys::new(&"app".parse().unwrap());
        let keys = source.generation(generation);
        let attempt = Attempt {
            epoch: Epoch(3),
            number: 1,
        };
        let root = "app/g/01ARZ3NDEKTSV4RRFFQ69G5FAV";
        for (key, expected) in [
            (keys.record(), "generation.json"),
            (keys.epoch(Epoch(3)), "e/00000000000000000003.json"),
            (keys.segment(SegmentNo(42)), "log/00000000000000000042.seg"),
            (
                keys.bulk(attempt, 7),
                "bulk/00000000000000000003-0000000001/0000000007.rows",
            ),
            (keys.image("x").part(2), "images/x/0000000002.part"),
            (keys.boundary(), "boundary.json"),
        ] {
            assert_eq!(key.as_str(), format!("{root}/{expected}"));
        }
        assert_eq!(source.current().as_str(), "app/current.json");
    }

    #[test]
    fn foreign_names_have_no_number() {
        assert_eq!(number_of("00000000000000000042.seg", ".seg"), Some(42));
        for name in [
            "42.seg",
            ".tmp-1",
            "0000000000000000004x.seg",
            "99999999999999999999.seg",
        ] {
            assert_eq!(number_of(name, ".seg"), None, "{name}");
        }
    }
}
