//! How far the log was trimmed, and who needs more of it: one object, changed by compare-and-set (rule 21).

use rindle_proto::ids::SegmentNo;
use serde::{Deserialize, Serialize};

use crate::error::ArchiveError;
use crate::log::Log;

/// Content of `boundary.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Boundary {
    /// Log objects up to this one may be gone; readers take none of them.
    pub(crate) boundary: SegmentNo,
}

impl Log {
    /// The last segment that was given up; 0 when the log is whole.
    pub(crate) async fn boundary(&self) -> Result<SegmentNo, ArchiveError> {
        let found: Option<Boundary> = self.objects.record(&self.keys.boundary()).await?;
        Ok(found.unwrap_or_default().boundary)
    }
}
