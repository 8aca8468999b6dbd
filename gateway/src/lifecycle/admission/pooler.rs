//! Addresses that are a connection pooler's by their name. Poolers that go by another name show by what they do: see
//! [`super::super::examine`].

use super::Finding;
use crate::pg::endpoint::Host;

/// Supabase's pooler listens here, under the name of the database too.
const SUPAVISOR_PORT: u16 = 6543;

const WHY: &str = "a replication session lives as long as the gateway, and what a session sets, locks and exports must \
                   stay its own; a pooler lends a server session for one transaction";

pub(in crate::lifecycle) fn check(hosts: &[Host]) -> Vec<Finding> {
    hosts.iter().filter_map(by_name).collect()
}

fn by_name(host: &Host) -> Option<Finding> {
    let name = host.name.to_ascii_lowercase();
    let first = name.split('.').next().unwrap_or_default();
    let supabase = name.ends_with(".supabase.com") || name.ends_with(".supabase.co");
    let mend = if name.ends_with(".neon.tech") && first.ends_with("-pooler") {
        let direct = host.name.replacen("-pooler.", ".", 1);
        format!("--pg-host {direct}")
    } else if name.contains(".pooler.supabase.") || supabase && host.port == SUPAVISOR_PORT {
        "--pg-host db.<project>.supabase.co with port 5432 (the direct connection)".to_owned()
    } else if first.ends_with("-pooler")
        || ["pooler", "pgbouncer", "pgcat", "supavisor", "odyssey"].contains(&first)
    {
        "name the server itself with --pg-host and --pg-port".to_owned()
    } else {
        return None;
    };
    let seen = format!("{host} is a connection pooler by its name");
    Some(Finding::fatal("Pooler", seen, WHY, mend))
}

/// A server that lends its sessions.
pub(in crate::lifecycle) fn by_behaviour(seen: String) -> Finding {
    let mend = "name the server itself with --pg-host and --pg-port";
    Finding::fatal("Pooler", seen, WHY, mend)
}
