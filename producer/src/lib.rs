//! The producer: replays a source's archive into a scratch mirror and publishes it as an image, from which new
//! and recovering followers start. It reads the archive only: no load on Postgres, none on the gateway.
//!
//! - [`job`]: one run over the generations that are due
//! - [`replay`]: the log into a mirror, up to a point; the command line's verify stands on it too
//! - [`bulk`]: rows of a copy, fetched ahead
//! - [`scratch`]: the mirror file that is kept between runs
//! - [`image`]: writing, publishing and proving
//! - [`verify`]: a copy of a mirror file brought to one position of the source, and its digests
//! - [`restore`]: a plain file of the source as it was at one moment
//! - [`progress`]: what is told meanwhile
//! - [`error`]: why there is no image
//!
//! A kill at any moment costs only the work since the last run: the scratch mirror stands at a commit of its own,
//! an image exists once its manifest does, and it counts as proved once it was restored and looked through.

pub mod bulk;
pub mod error;
pub mod image;
pub mod job;
pub mod progress;
pub mod replay;
pub mod restore;
pub mod scratch;
pub mod verify;

pub use error::ProducerError;
pub use job::{Job, Produced, State, run};
pub use progress::{Progress, Step, Watch};
