//! What a source must be so that a mirror can equal it. Facts are read once, in one snapshot ([`facts`]); the
//! checks ([`server`], [`tables`], [`mirror_names`]) are pure functions over them, and tell everything at once.

pub mod facts;
mod mirror_names;
mod server;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

use self::facts::SourceFacts;
pub(super) use self::server::{
    no_free_sender, no_replication_right, not_published, standby, too_old,
};
use super::names::TableName;

/// One thing that was found about a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name of the rule.
    pub id: &'static str,
    /// What follows from it.
    pub level: Level,
    /// The table it is about; none for the server, the role or the publication.
    pub object: Option<String>,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// The statement or setting that mends it.
    pub mend: String,
}

/// What follows from a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No generation can be minted.
    Fatal,
    /// It works, and an operator should know.
    Warning,
}

impl Finding {
    /// A finding that forbids a generation.
    pub fn fatal(
        id: &'static str,
        seen: impl Into<String>,
        why: &'static str,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            id,
            level: Level::Fatal,
            object: None,
            seen: seen.into(),
            why,
            mend: mend.into(),
        }
    }

    /// The same finding, about an object.
    pub fn about(self, object: impl Into<String>) -> Self {
        Self {
            object: Some(object.into()),
            ..self
        }
    }

    /// The same finding, as a warning.
    pub fn warning(self) -> Self {
        Self {
            level: Level::Warning,
            ..self
        }
    }

    /// True when no generation can be minted with it.
    pub fn is_fatal(&self) -> bool {
        self.level == Level::Fatal
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self
            .object
            .as_ref()
            .map(|object| format!(" {object}:"))
            .unwrap_or_default();
        let level = match self.level {
            Level::Fatal => "fatal",
            Level::Warning => "warning",
        };
        let Self {
            id,
            seen,
            why,
            mend,
            ..
        } = self;
        write!(
            f,
            "{level} {id}:{object} {seen}\n    why:  {why}\n    mend: {mend}"
        )
    }
}

/// Everything that is wrong with a source for a mirror of its publication. `wanted` are tables that the operator
/// named: the publication must carry them.
pub fn check(source: &SourceFacts, wanted: &[TableName]) -> Vec<Finding> {
    let mut findings = server::check(&source.session);
    let Some(view) = &source.view else {
        findings.push(server::no_publication(&source.publication));
        return findings;
    };
    findings.extend(server::check_publication(view, wanted));
    findings.extend(view.tables.iter().flat_map(tables::check));
    findings.extend(tables::check_rights(
        view,
        &source.rights,
        &source.session.role,
    ));
    findings.extend(mirror_names::check(view));
    if findings.is_empty()
        && let Err(unfit) = view.schema()
    {
        let why = "the mirror could not equal the source";
        findings.push(Finding::fatal(
            "Unfit",
            unfit.to_string(),
            why,
            "see what was seen",
        ));
    }
    findings
}

/// True for a finding that would make the application's own writes fail once the table is published.
pub(super) fn breaks_writes(finding: &Finding) -> bool {
    matches!(
        finding.id,
        tables::NO_ROW_KEY | tables::KEY_NOT_IDENTITY | tables::KEY_DEFERRABLE
    )
}
