//! A beat for a source that stands still: a slot that a standby keeps moves on there only with the source's own
//! transactions, so a quiet source would never be ready for a failover.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;

use crate::live::Live;
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;
use crate::ship::chain;

/// How long a source is quiet before it gets a beat.
const BEAT_INTERVAL: Duration = Duration::from_secs(10);

/// A transaction with an id of its own that changes nothing: the stream brings it, and the assembler makes no frame.
const BEAT: &str = "SELECT pg_catalog.pg_logical_emit_message(true, 'rindle heartbeat', '')";

/// Beats on the server of `endpoint`'s one host, until dropped.
pub(super) async fn beat(mut client: Arc<Client>, endpoint: Endpoint, live: Arc<Live>) {
    let mut timer = tokio::time::interval(BEAT_INTERVAL);
    let mut before = None;
    loop {
        timer.tick().await;
        let head = Some(live.log.head().offset);
        if head == before
            && let Err(error) = client.execute(BEAT, &[]).await
        {
            tracing::warn!(
                error = chain(&error),
                "no heartbeat: while the source is quiet, a standby's copy of the slot stands still, and a failover would \
                 lose it; a new connection is made now, so look into it only when this comes again"
            );
            // The stream goes on without this connection, so nobody else makes it again.
            for host in &endpoint.hosts {
                match conn::connect_host(&endpoint, host, "rindle-gateway heartbeat").await {
                    Ok(again) => client = Arc::new(again),
                    Err(error) => tracing::warn!(
                        error = chain(&error),
                        "no connection for the heartbeat: the stream goes on, but a standby's copy of the slot may fall \
                         behind; mend what the error names, it is tried again after 10 s, and before a promotion ask \
                         rindle pg status --standby-host"
                    ),
                }
            }
        }
        before = head;
    }
}
