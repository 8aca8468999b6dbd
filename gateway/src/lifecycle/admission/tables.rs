//! Checks of each table and each leaf: row key, replica identity, rows that no stream carries, rights.

use super::Finding;
use super::facts::RelationRights;
use crate::lifecycle::names::TableName;
use crate::pg::catalog::{IndexFacts, RelationFacts, TableFacts, quote_ident};

pub(super) const NO_ROW_KEY: &str = "NoRowKey";
pub(super) const KEY_NOT_IDENTITY: &str = "RowKeyNotIdentity";
pub(super) const KEY_DEFERRABLE: &str = "RowKeyDeferrable";

/// The relations of a table that hold its rows: itself, or its leaves.
pub(super) fn physical(table: &TableFacts) -> impl Iterator<Item = &RelationFacts> {
    let own = (table.relation.kind != 'p').then_some(&table.relation);
    table.leaves.iter().chain(own)
}

/// Checks one table with its leaves.
pub(super) fn check(table: &TableFacts) -> Vec<Finding> {
    let relation = &table.relation;
    let mut findings: Vec<Finding> = physical(table).filter_map(storage).collect();
    let Some(key) = relation.row_key() else {
        let why = "a mirror finds the row of an UPDATE or DELETE by its key, and without a replica identity \
                   Postgres refuses the application's own UPDATEs of a published table";
        let mend = format!("ALTER TABLE {} ADD PRIMARY KEY (…)", relation.quoted_name());
        let seen = "it has neither a primary key nor a unique index over NOT NULL columns";
        findings.push(Finding::fatal(NO_ROW_KEY, seen, why, mend).about(relation.full_name()));
        return findings;
    };
    let names = column_names(relation, key);
    findings.extend(deferrable(relation, key, &names));
    findings.extend(key_columns(table, key, &names));
    for rel in physical(table).filter(|rel| rel.kind == 'r') {
        let differs = (rel.oid != relation.oid)
            .then(|| leaf_key(rel, &names))
            .flatten();
        findings.extend(differs.or_else(|| identity(rel, &names)));
        findings.extend(filter(rel, &table.published));
    }
    findings
}

fn column_names<'a>(relation: &'a RelationFacts, index: &IndexFacts) -> Vec<&'a str> {
    let of = |attnum| {
        relation
            .columns
            .iter()
            .find(|column| column.attnum == attnum)
    };
    index
        .columns
        .iter()
        .filter_map(|attnum| of(*attnum))
        .map(|column| &*column.name)
        .collect()
}

fn list(columns: &[&str]) -> String {
    columns
        .iter()
        .map(|name| quote_ident(name))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Rows that no stream carries.
fn storage(rel: &RelationFacts) -> Option<Finding> {
    let name = rel.quoted_name();
    let found = match (rel.kind, rel.persistence) {
        ('r', 'p') => return None,
        ('r', _) => Finding::fatal(
            "Unlogged",
            "it is not logged",
            "its changes are not in the WAL, so no stream carries them",
            format!("ALTER TABLE {name} SET LOGGED, or take it out of the publication"),
        ),
        (kind, _) => Finding::fatal(
            "NotATable",
            format!("it is of relkind {kind:?}, not an ordinary table"),
            "its rows are not in this server's WAL",
            "take it out of the publication, or DETACH it from its partitioned table",
        ),
    };
    Some(found.about(rel.full_name()))
}

fn deferrable(relation: &RelationFacts, key: &IndexFacts, names: &[&str]) -> Option<Finding> {
    (!key.immediate).then(|| {
        let (name, index) = (relation.quoted_name(), quote_ident(&key.name));
        let seen = format!("its primary key {:?} is deferrable", key.name);
        let why = "two rows may have one key inside a transaction, and Postgres refuses the application's own \
                   UPDATEs of a published table with such a key";
        let mend = format!(
            "ALTER TABLE {name} DROP CONSTRAINT {index}, ADD CONSTRAINT {index} PRIMARY KEY ({})",
            list(names)
        );
        Finding::fatal(KEY_DEFERRABLE, seen, why, mend).about(relation.full_name())
    })
}

/// Every key column must be sent, and be a value that the stream carries.
fn key_columns(table: &TableFacts, key: &IndexFacts, names: &[&str]) -> Vec<Finding> {
    let relation = &table.relation;
    let check = |name: &&str| {
        let generated = relation
            .column(name)
            .is_some_and(|column| !column.generated.is_empty());
        let found = if generated {
            Finding::fatal(
                "RowKeyGenerated",
                format!("column {name:?} of its row key {:?} is generated", key.name),
                "generated columns come as NULL in the old rows of UPDATE and DELETE",
                "make another primary key, over columns that are not generated",
            )
        } else if !table.published.iter().any(|published| published == name) {
            Finding::fatal(
                "RowKeyNotPublished",
                format!(
                    "the publication leaves out column {name:?} of its row key {:?}",
                    key.name
                ),
                "a mirror finds the row of an UPDATE or DELETE by its key",
                "add the column to the publication's column list",
            )
        } else {
            return None;
        };
        Some(found.about(relation.full_name()))
    };
    names.iter().filter_map(check).collect()
}

/// A leaf must have the table's row key as a key of its own.
fn leaf_key(leaf: &RelationFacts, key: &[&str]) -> Option<Finding> {
    let has = leaf.indexes.iter().any(|index| {
        let unique = index.unique && index.immediate && index.plain && index.valid;
        let mut columns = column_names(leaf, index);
        let mut key = key.to_vec();
        columns.sort_unstable();
        key.sort_unstable();
        unique && columns == key
    });
    (!has).then(|| {
        let seen = format!("this partition has no key over ({})", list(key));
        let why = "rows come under the partition's own key, and the mirror has the table's";
        let mend = format!(
            "ALTER TABLE {} ADD PRIMARY KEY ({})",
            leaf.quoted_name(),
            list(key)
        );
        Finding::fatal("LeafKeyDiffers", seen, why, mend).about(leaf.full_name())
    })
}

/// Old rows must carry the row key.
fn identity(rel: &RelationFacts, key: &[&str]) -> Option<Finding> {
    let covered = |name: &&str| {
        rel.column(name)
            .is_some_and(|column| rel.identifies(column.attnum))
    };
    let lacking: Vec<&str> = key.iter().filter(|name| !covered(name)).copied().collect();
    (!lacking.is_empty()).then(|| {
        let setting = match rel.replident {
            'd' => "DEFAULT",
            'i' => "USING INDEX",
            'f' => "FULL",
            _ => "NOTHING",
        };
        let seen = format!(
            "its replica identity ({setting}) does not hold {} of the row key ({})",
            list(&lacking),
            list(key)
        );
        let why = "an UPDATE or DELETE that comes without the old key finds no row in a mirror, and without any \
                   replica identity Postgres refuses the application's own";
        let identity = match rel.row_key() {
            Some(index) if index.primary => "DEFAULT".to_owned(),
            Some(index) if column_names(rel, index) == key => {
                format!("USING INDEX {}", quote_ident(&index.name))
            }
            _ => "FULL".to_owned(),
        };
        let mend = format!("ALTER TABLE {} REPLICA IDENTITY {identity}", rel.quoted_name());
        Finding::fatal(KEY_NOT_IDENTITY, seen, why, mend).about(rel.full_name())
    })
}

/// A row that an UPDATE moves into the filter comes as an INSERT without its untouched large values.
fn filter(rel: &RelationFacts, published: &[String]) -> Option<Finding> {
    rel.row_filter.as_ref()?;
    let lost = rel.columns.iter().filter(|column| {
        column.toastable && published.contains(&column.name) && !rel.identifies(column.attnum)
    });
    let lost: Vec<&str> = lost.map(|column| &*column.name).collect();
    (!lost.is_empty()).then(|| {
        let seen = format!(
            "it has a row filter, and {} can be stored out of line and is not in the replica identity",
            list(&lost)
        );
        let why = "when an UPDATE moves a row into the filter, Postgres sends it without its untouched large values";
        let mend = format!("ALTER TABLE {} REPLICA IDENTITY FULL", rel.quoted_name());
        Finding::fatal("RowFilterToast", seen, why, mend).about(rel.full_name())
    })
}

/// The role must be able to read every row.
pub(super) fn check_rights(
    tables: &[TableFacts],
    rights: &[RelationRights],
    role: &str,
) -> Vec<Finding> {
    let relations = tables
        .iter()
        .flat_map(physical)
        .filter(|rel| rel.kind == 'r');
    let mut findings = Vec::new();
    for rel in relations {
        let Some(right) = rights.iter().find(|right| right.oid == rel.oid) else {
            continue;
        };
        let table = TableName::new(&*rel.schema, &*rel.name);
        let who = quote_ident(role);
        if !right.usage || !right.select {
            let seen = format!("role {role:?} may not read it");
            let why = "the first copy reads every row";
            let mend = format!(
                "GRANT USAGE ON SCHEMA {} TO {who}; GRANT SELECT ON {} TO {who}",
                quote_ident(&rel.schema),
                table.quoted()
            );
            findings.push(Finding::fatal("NoSelect", seen, why, mend).about(rel.full_name()));
        }
        if right.row_security {
            let seen = format!("row-level security hides rows from role {role:?}");
            let why = "the first copy would miss rows that the stream then changes";
            let mend = format!("ALTER ROLE {who} BYPASSRLS");
            findings.push(Finding::fatal("RowSecurity", seen, why, mend).about(rel.full_name()));
        }
    }
    findings
}
