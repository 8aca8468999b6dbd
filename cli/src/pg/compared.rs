//! The table that `rindle pg verify` prints.

use rindle_gateway::lifecycle::verify::Compared;
use rindle_proto::ids::Lsn;

/// A line for each table, and the verdict.
pub(super) fn table(lsn: Lsn, tables: &[Compared], equal: bool, left_out: &[String]) -> String {
    let rows =
        |rows: Option<u64>| rows.map_or_else(|| "no table".to_owned(), |rows| rows.to_string());
    let width = tables
        .iter()
        .map(|one| one.table.len())
        .max()
        .unwrap_or(0)
        .max(5);
    let mut text = format!(
        "{:<width$}  {:>14}  {:>14}",
        "table", "source rows", "mirror rows"
    );
    for one in tables {
        let (source, mirror) = (rows(one.source_rows), rows(one.mirror_rows));
        let word = if one.equal { "equal" } else { "DIFFERENT" };
        text.push_str(&format!(
            "\n{:<width$}  {source:>14}  {mirror:>14}  {word}",
            one.table
        ));
    }
    let different = tables.iter().filter(|one| !one.equal).count();
    let verdict = match equal {
        true => format!("all {} tables are equal at {lsn}", tables.len()),
        false => format!(
            "{different} of {} tables differ at {lsn}; restore that mirror from an image",
            tables.len()
        ),
    };
    for name in left_out {
        text.push_str(&format!("\nleft out: {name}, whose rows are being copied"));
    }
    format!("{text}\n{verdict}")
}
