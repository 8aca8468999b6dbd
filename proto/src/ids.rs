//! Newtypes for every number with a meaning. None of them converts into another by accident.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A WAL position of Postgres (bytes since the start of the WAL), printed as `X/Y`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// Start of a transaction's commit record (pgoutput `Begin.final_lsn`). Copies compare this, strictly below
/// their snapshot's position; it is never acknowledged as done. Does not compare with [`EndLsn`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FinalLsn(pub Lsn);

/// End of a transaction's commit record (pgoutput `Commit.end_lsn`). Acknowledgements and cursors use this.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct EndLsn(pub Lsn);

/// Number of a frame in its generation: the first frame is 1, there are no gaps. 0 means "before the first".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Seq(pub u64);

/// Number of a log object in its generation: the first is 1, there are no gaps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SegmentNo(pub u64);

/// Number of a takeover: each walsender session of a gateway has its own, and it only rises.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// Timeline of a Postgres cluster.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timeline(pub u32);

/// Object id of a Postgres relation or type.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Oid(pub u32);

/// Identity of a generation: a ULID, 26 characters, upper case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub ulid::Ulid);

/// Name of a source: 1 to 32 characters of `[a-z0-9-]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceName(String);

/// SHA-256 chain value over all frames up to and including one position (see `proto/README.md`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// A reader's place in a generation: the last frame it applied, and the chain over all frames up to it (I4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Last frame applied; 0 before the first.
    pub seq: Seq,
    /// Chain over frames `1..=seq`; the generation's seed before the first.
    pub chain: Digest,
}

/// A text form of an id that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("{what} {text:?} is not valid: {expected}")]
pub struct ParseError {
    what: &'static str,
    text: String,
    expected: &'static str,
}

impl ParseError {
    fn new(what: &'static str, text: &str, expected: &'static str) -> Self {
        Self {
            what,
            text: text.to_owned(),
            expected,
        }
    }
}

impl Lsn {
    /// Distance to an earlier position in bytes; 0 when `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl FromStr for Lsn {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = || ParseError::new("LSN", text, "expected hex/hex, such as 0/16B3748");
        let (high, low) = text.split_once('/').ok_or_else(bad)?;
        let half = |part: &str| match part.len() {
            1..=8 if part.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u32::from_str_radix(part, 16).ok()
            }
            _ => None,
        };
        match (half(high), half(low)) {
            (Some(high), Some(low)) => Ok(Lsn(u64::from(high) << 32 | u64::from(low))),
            _ => Err(bad()),
        }
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

macro_rules! display_inner {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_inner!(
    FinalLsn, EndLsn, Seq, SegmentNo, Epoch, Timeline, Oid, Generation, SourceName
);

impl Seq {
    /// The frame after this one.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl SegmentNo {
    /// The log object after this one.
    pub fn next(self) -> SegmentNo {
        SegmentNo(self.0.saturating_add(1))
    }
}

impl Generation {
    /// The id's sixteen bytes, most significant first.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.0.to_be_bytes()
    }

    /// The id of sixteen bytes as [`Generation::to_bytes`] gives them.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(ulid::Ulid(u128::from_be_bytes(bytes)))
    }

    /// The last sixteen characters in lower case: the part that slot names carry.
    pub fn slot_suffix(self) -> String {
        self.0.to_string()[10..].to_ascii_lowercase()
    }
}

impl FromStr for Generation {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let id = ulid::Ulid::from_string(text)
            .ok()
            .filter(|id| id.to_string() == text.to_ascii_uppercase());
        id.map(Generation)
            .ok_or_else(|| ParseError::new("generation", text, "expected a ULID of 26 characters"))
    }
}

impl Serialize for Generation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Generation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl SourceName {
    /// The name as it stands in paths and configuration.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the generation's replication slot: `rindle_<name, - as _>_<16 characters>`.
    pub fn slot_name(&self, generation: Generation) -> String {
        format!(
            "rindle_{}_{}",
            self.0.replace('-', "_"),
            generation.slot_suffix()
        )
    }
}

impl FromStr for SourceName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let valid = (1..=32).contains(&text.len())
            && text
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        match valid {
            true => Ok(Self(text.to_owned())),
            false => Err(ParseError::new(
                "source name",
                text,
                "expected 1 to 32 characters of [a-z0-9-]",
            )),
        }
    }
}

impl Serialize for SourceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SourceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl Digest {
    /// The digest as 64 lower-case hex digits.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl FromStr for Digest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = || ParseError::new("digest", text, "expected 64 hex digits");
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_not_hex| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex()[..16])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsn_prints_as_postgres_does_and_parses_back() {
        for (value, text) in [
            (0, "0/0"),
            (0x16_0000_00AB, "16/AB"),
            (u64::MAX, "FFFFFFFF/FFFFFFFF"),
        ] {
            assert_eq!(Lsn(value).to_string(), text);
            assert_eq!(text.parse::<Lsn>().unwrap(), Lsn(value));
        }
        for bad in ["", "1", "/", "1/", "G/0", "1/123456789", "+1/0"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn slot_name_is_that_of_the_contract() {
        let source: SourceName = "my-app".parse().unwrap();
        let generation: Generation = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        assert_eq!(
            source.slot_name(generation),
            "rindle_my_app_tsv4rrffq69g5fav"
        );
        assert!("My".parse::<SourceName>().is_err());
        assert!("".parse::<SourceName>().is_err());
    }

    #[test]
    fn digest_refuses_other_lengths() {
        assert_eq!(
            Digest([7; 32]).to_hex().parse::<Digest>().unwrap(),
            Digest([7; 32])
        );
        assert!("00".parse::<Digest>().is_err());
    }
}
