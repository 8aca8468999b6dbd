//! What a source must be so that a mirror can equal it. Facts are read once, in one snapshot ([`facts`]); the
//! checks are pure functions over them, and tell everything at once:
//!
//! - [`server`]: version, WAL level, recovery, encoding, slots, the publication
//! - [`tables`], [`columns`], [`mirror_names`]: what each table must be
//! - [`retention`], [`activity`]: what would cost the slot, or keep it from being made
//! - [`capture`]: whether schema changes are captured
//! - [`pooler`], [`provider`], [`posture`]: what stands between us and the server, and what a failover costs

mod activity;
pub(super) mod capture;
mod columns;
pub mod facts;
mod mirror_names;
mod pooler;
pub mod posture;
pub mod provider;
mod retention;
mod server;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

use self::facts::SourceFacts;
pub(super) use self::pooler::{by_behaviour as pooler_by_behaviour, check as poolers_by_name};
use self::provider::Provider;
pub(super) use self::server::{
    no_free_sender, no_replication_right, not_published, standby, too_old,
};
use super::names::TableName;
use crate::pg::catalog::TableFacts;
use crate::pg::endpoint::Host;

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
    /// Good to know.
    Note,
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

    /// The same finding, as a note.
    pub fn note(self) -> Self {
        Self {
            level: Level::Note,
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
            Level::Note => "note",
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

/// What the operator asks for, beside the source itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Tables that the publication must carry.
    pub tables: &'a [TableName],
    /// Where Postgres is said to be.
    pub hosts: &'a [Host],
    /// Whose server it is said to be.
    pub provider: Option<Provider>,
    /// The provider is to carry the slot over a failover.
    pub provider_managed: bool,
    /// `prepare` comes later: what it would make is looked at as if it were there.
    pub before_prepare: bool,
}

/// Everything that is wrong with a source for a mirror of its publication, and what an operator should know.
pub fn check(source: &SourceFacts, asked: &Asked<'_>) -> Vec<Finding> {
    let detected = provider::detect(&source.fingerprints);
    let mut findings = pooler::check(asked.hosts);
    findings.extend(server::check(&source.session, detected.or(asked.provider)));
    findings.extend(check_publication(source, asked));
    findings.extend(provider::check(&source.session, detected, asked.provider));
    findings.extend(retention::check(&source.session));
    findings.extend(activity::check(&source.open, &source.prepared));
    if !(asked.before_prepare && source.capture.is_bare()) {
        findings.extend(capture::check(&source.capture));
    }
    let (_, lacking) = posture::decide(&source.session, &source.failover, asked.provider_managed);
    findings.extend(lacking);
    findings
}

/// The publication with its tables, and those that were named.
fn check_publication(source: &SourceFacts, asked: &Asked<'_>) -> Vec<Finding> {
    let role = &source.session.role;
    let unknown = source.unknown.iter();
    let unknown = unknown.map(|table| server::unknown_table(table, source.view.as_ref()));
    let mut findings: Vec<Finding> = unknown.collect();
    let made_later = asked.before_prepare && (source.view.is_none() || source.ours);
    if made_later && !source.unpublished.is_empty() {
        findings.push(server::not_prepared(
            &source.publication,
            &source.unpublished,
        ));
        findings.extend(source.unpublished.iter().flat_map(tables::check));
        findings.extend(tables::check_rights(
            &source.unpublished,
            &source.rights,
            role,
        ));
    }
    let published = source.view.iter().flat_map(|view| &view.tables);
    let later = source.unpublished.iter().filter(|_| made_later);
    let tables: Vec<&TableFacts> = published.chain(later).collect();
    findings.extend(mirror_names::check(source.session.version_num, &tables));
    findings.extend(columns::check(source.session.version_num, &tables));
    let Some(view) = &source.view else {
        if !made_later || source.unpublished.is_empty() {
            findings.push(server::no_publication(&source.publication));
        }
        return findings;
    };
    let there = asked
        .tables
        .iter()
        .filter(|table| !source.unknown.contains(table));
    let wanted: Vec<&TableName> = there.filter(|_| !made_later).collect();
    findings.extend(server::check_publication(view, &wanted));
    findings.extend(view.tables.iter().flat_map(tables::check));
    findings.extend(tables::check_rights(&view.tables, &source.rights, role));
    findings.extend(source.unsent.iter().map(server::unsent_table));
    if !findings.iter().any(Finding::is_fatal)
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
