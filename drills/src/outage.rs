//! An archive folder that is out of reach for a while.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::fs;

/// A file stands in the folder's place, so that nothing can be read or made there, not even by root.
#[derive(Debug)]
pub struct Outage {
    place: PathBuf,
    aside: PathBuf,
}

impl Outage {
    pub async fn begin(place: &Path) -> Result<Self> {
        let aside = place.with_extension("aside");
        fs::rename(place, &aside)
            .await
            .context("put the archive aside")?;
        fs::write(place, "out of reach")
            .await
            .context("stand in for the archive")?;
        Ok(Self {
            place: place.to_owned(),
            aside,
        })
    }

    pub async fn end(self) -> Result<()> {
        fs::remove_file(&self.place)
            .await
            .context("take the stand-in away")?;
        fs::rename(&self.aside, &self.place)
            .await
            .context("put the archive back")
    }
}
