//! Finding the head, and the object that holds a commit, with few reads of headers. Both rest on the log having
//! no holes above its boundary (I2).

use std::sync::atomic::Ordering;

use rindle_proto::ids::{SegmentNo, Seq};

use super::Log;
use crate::layout::{number_of, segment_name};
use crate::reader::ReadError;
use crate::store::StoreError;

/// No log is longer.
const FARTHEST: u64 = 1 << 48;

impl Log {
    /// The last object above `boundary`; the boundary itself when there is none.
    ///
    /// Only one object is absent for sure when this ends: the one after the head. It may have been absent because
    /// it was trimmed just now; then it lies below the boundary as it is read next.
    pub(crate) async fn find_head(&self, boundary: SegmentNo) -> Result<SegmentNo, StoreError> {
        let seen = self.seen.load(Ordering::Relaxed);
        let mut present = boundary.0;
        if seen > boundary.0 && self.stands(seen).await? {
            present = seen;
        }
        let mut step = 1;
        let mut absent = loop {
            let probe = present.saturating_add(step);
            match self.stands(probe).await? {
                true => present = probe,
                false => break probe,
            }
            // A proxy may answer that everything is there.
            if step > FARTHEST {
                let key = self.keys.segment(SegmentNo(probe));
                let what = "whatever is asked for seems to be there: look what answers in the store's place";
                let source = std::io::Error::other(what);
                return Err(StoreError::io(
                    "look for the end of the log at",
                    &key,
                    source,
                ));
            }
            step *= 2;
        };
        while absent - present > 1 {
            let middle = present + (absent - present) / 2;
            match self.stands(middle).await? {
                true => present = middle,
                false => absent = middle,
            }
        }
        if present > boundary.0 {
            self.saw(SegmentNo(present));
        }
        Ok(SegmentNo(present))
    }

    /// The first object behind `segment` that a listing shows, if any.
    pub(crate) async fn listed_after(
        &self,
        segment: SegmentNo,
    ) -> Result<Option<SegmentNo>, StoreError> {
        let after = segment_name(segment);
        let names = self.objects.0.list(&self.keys.log(), Some(&after)).await?;
        Ok(names
            .iter()
            .find_map(|name| number_of(name, ".seg"))
            .map(SegmentNo))
    }

    /// The objects behind `segment` that a listing shows.
    pub(crate) async fn listed(&self, segment: SegmentNo) -> Result<Vec<SegmentNo>, StoreError> {
        let after = segment_name(segment);
        let names = self.objects.0.list(&self.keys.log(), Some(&after)).await?;
        let numbers = names.iter().filter_map(|name| number_of(name, ".seg"));
        Ok(numbers.map(SegmentNo).collect())
    }

    /// The first object in `(boundary, head]` whose last commit is `seq` or a later frame.
    pub(crate) async fn find_commit(
        &self,
        boundary: SegmentNo,
        head: SegmentNo,
        seq: Seq,
    ) -> Result<Option<SegmentNo>, ReadError> {
        let (mut below, mut at) = (boundary.0, head.0 + 1);
        while at - below > 1 {
            let middle = below + (at - below) / 2;
            let Some(header) = self.header(SegmentNo(middle)).await? else {
                return Err(self.absent(SegmentNo(middle)).await?);
            };
            match header
                .last_commit
                .is_some_and(|commit| commit.position.seq >= seq)
            {
                true => at = middle,
                false => below = middle,
            }
        }
        Ok((at <= head.0).then_some(SegmentNo(at)))
    }

    /// Why an object that must be there is not: trimmed, or lost.
    pub(crate) async fn absent(&self, segment: SegmentNo) -> Result<ReadError, ReadError> {
        let boundary = self.boundary().await?;
        Ok(match segment <= boundary {
            true => ReadError::Trimmed { segment, boundary },
            false => ReadError::Gap {
                key: self.keys.segment(segment).to_string(),
            },
        })
    }

    async fn stands(&self, segment: u64) -> Result<bool, StoreError> {
        self.objects
            .exists(&self.keys.segment(SegmentNo(segment)))
            .await
    }
}
