//! Finding the object in which a reader begins.

use rindle_proto::ids::{Position, SegmentNo};

use super::{Cursor, ReadError, ReadFrom};
use crate::log::Log;

impl Log {
    pub(super) async fn seek(&self, from: ReadFrom) -> Result<Cursor, ReadError> {
        match from {
            ReadFrom::Start => Ok(self.first()),
            ReadFrom::Position { position } if position.seq.0 == 0 => {
                match position == Position::start(self.generation) {
                    true => Ok(self.first()),
                    false => Err(ReadError::ChainDiffers { seq: position.seq }),
                }
            }
            ReadFrom::Position { position } => self.seek_commit(position).await,
            ReadFrom::Image { segment, position } => Ok(Cursor {
                next: segment,
                before: None,
                given: position,
            }),
        }
    }

    fn first(&self) -> Cursor {
        let given = Position::start(self.generation);
        Cursor {
            next: SegmentNo(1),
            before: None,
            given,
        }
    }

    /// The object whose frames hold the commit, or the first retained one that starts right after it.
    async fn seek_commit(&self, position: Position) -> Result<Cursor, ReadError> {
        let boundary = self.boundary().await?;
        let head = self.find_head(boundary).await?;
        let found = self.find_commit(boundary, head, position.seq).await?;
        let Some(segment) = found else {
            let last = match head > boundary {
                true => self
                    .header(head)
                    .await?
                    .and_then(|header| header.last_commit),
                false => None,
            };
            let last_commit = last.map(|commit| commit.position.seq).unwrap_or_default();
            return Err(ReadError::NotYet {
                wanted: position.seq,
                last_commit,
            });
        };
        let Some(header) = self.header(segment).await? else {
            return Err(self.absent(segment).await?);
        };
        // Standing right before the first retained object is enough.
        let least = if header.fence {
            header.end.seq
        } else {
            header.start.seq
        };
        if segment == boundary.next() && boundary.0 > 0 && position.seq < least {
            return Err(ReadError::Trimmed {
                segment: boundary,
                boundary,
            });
        }
        Ok(Cursor {
            next: segment,
            before: None,
            given: position,
        })
    }
}
