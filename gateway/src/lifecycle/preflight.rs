//! `rindle pg preflight`: everything that is wrong with a source, told at once; nothing is changed.

use serde::Serialize;

use super::admission::Finding;
use super::admission::posture::Posture;
use super::admission::provider::Provider;
use super::error::{LifecycleError, Refusal};
use super::examine::{SourceRequest, examine};
use super::names::TableName;

/// What was found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// The server's version; none when a pooler stands before it.
    pub server_version: Option<String>,
    /// Whose server it is, when that is known.
    pub provider: Option<Provider>,
    /// The publication.
    pub publication: Option<String>,
    /// The tables that it carries.
    pub tables: Vec<TableName>,
    /// What a generation minted now would do when the source fails over.
    pub posture: Option<Posture>,
    /// Fatal ones first.
    pub findings: Vec<Finding>,
}

impl Preflight {
    /// True when nothing keeps a generation from being minted.
    pub fn is_admitted(&self) -> bool {
        !self.findings.iter().any(Finding::is_fatal)
    }
}

/// Looks at a source, before or after `prepare`.
///
/// # Errors
/// When Postgres cannot be asked. What is wrong with the source is no error.
pub async fn preflight(request: &SourceRequest) -> Result<Preflight, LifecycleError> {
    let examined = match examine(request, "preflight", true).await {
        Ok(examined) => examined,
        Err(LifecycleError::Refused(Refusal { findings })) => {
            return Ok(Preflight {
                server_version: None,
                provider: request.provider,
                publication: None,
                tables: Vec::new(),
                posture: None,
                findings,
            });
        }
        Err(error) => return Err(error),
    };
    let tables = examined.facts.view.iter().flat_map(|view| &view.tables);
    let name = |table: &crate::pg::catalog::TableFacts| {
        TableName::new(&*table.relation.schema, &*table.relation.name)
    };
    Ok(Preflight {
        server_version: Some(examined.facts.session.version.clone()),
        provider: examined.provider,
        tables: tables.map(name).collect(),
        publication: Some(examined.facts.publication),
        posture: Some(examined.posture),
        findings: examined.findings,
    })
}
