//! What the catalog says about a publication and its tables, as plain data, and what follows from it for the
//! mirror. Reading takes no lock on a table; run it in a transaction to see one snapshot. Catalog rows come
//! from the transaction's snapshot, but the texts of types, filters and column lists from the present: what
//! must not have changed meanwhile is compared with [`CatalogView::copy_facts_differ`].

pub mod facts;
mod mirror;
mod query;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rindle_proto::ids::Oid;
use rindle_proto::pgtype::{ElementFacts, Kind, TypeFacts};
use serde::{Deserialize, Serialize};

pub use self::facts::{Facts, Patch};
pub use self::mirror::Unfit;
pub use self::query::{
    CatalogError, read, read_facts, read_filters, read_publications, read_relations, read_sizes,
    read_tables, read_with_sizes,
};

/// A publication and everything it publishes, without `rindle`'s own tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogView {
    /// The server.
    pub server: ServerFacts,
    /// The publication.
    pub publication: PublicationFacts,
    /// One for each table of the mirror, by oid: a partitioned table's leaves are with its topmost published
    /// ancestor.
    pub tables: Vec<TableFacts>,
    /// Enums and composites that columns use, directly or through other types: labels or attributes as text.
    pub types: BTreeMap<String, String>,
}

/// The server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// `server_version_num`, such as 150018.
    pub version_num: u32,
    /// Encoding of the database, such as `UTF8`.
    pub encoding: String,
    /// Object id of the database.
    pub database_oid: Oid,
    /// It is a standby.
    pub in_recovery: bool,
}

/// One row of `pg_publication`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationFacts {
    /// Object id.
    pub oid: Oid,
    /// Name.
    #[serde(rename = "pubname")]
    pub name: String,
    /// FOR ALL TABLES.
    #[serde(rename = "puballtables")]
    pub all_tables: bool,
    /// Publishes INSERT.
    #[serde(rename = "pubinsert")]
    pub insert: bool,
    /// Publishes UPDATE.
    #[serde(rename = "pubupdate")]
    pub update: bool,
    /// Publishes DELETE.
    #[serde(rename = "pubdelete")]
    pub delete: bool,
    /// Publishes TRUNCATE.
    #[serde(rename = "pubtruncate")]
    pub truncate: bool,
    /// `publish_via_partition_root`.
    #[serde(rename = "pubviaroot")]
    pub via_root: bool,
    /// `publish_generated_columns` (18 and later): `n` none, `s` stored.
    #[serde(rename = "pubgencols", default)]
    pub generated_columns: Option<String>,
    /// Tables that it names.
    #[serde(default)]
    pub tables: Vec<Member>,
    /// Schemas whose tables it publishes.
    #[serde(default)]
    pub schemas: Vec<Oid>,
}

/// One table that a publication names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The table.
    pub oid: Oid,
    /// Its column list, by number.
    pub columns: Option<Vec<i16>>,
    /// Digest of its row filter. Its text is not a fact: Postgres locks the table to print it.
    pub filter: Option<String>,
}

/// One table of the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFacts {
    /// The table; the topmost published ancestor of leaves.
    pub relation: RelationFacts,
    /// The leaves of a partitioned table, by oid.
    pub leaves: Vec<RelationFacts>,
    /// Names of the columns that the publication says it sends. It also names generated ones that it does not.
    pub published: Vec<String>,
}

/// One relation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationFacts {
    /// Object id.
    pub oid: Oid,
    /// Schema.
    pub schema: String,
    /// Object id of the schema.
    pub namespace: Oid,
    /// Name.
    pub name: String,
    /// What it is a partition of.
    pub parent: Option<Oid>,
    /// `relkind`: `r` table, `p` partitioned table, `f` foreign table.
    pub kind: char,
    /// `relpersistence`: `p` permanent, `u` unlogged.
    pub persistence: char,
    /// `relreplident`: `d` default, `i` index, `f` full, `n` nothing.
    pub replident: char,
    /// Owner.
    pub owner: String,
    /// Row-level security is on.
    pub row_security: bool,
    /// It holds for the owner too.
    pub force_row_security: bool,
    /// The file with its rows; another one after a rewrite.
    pub filenode: u32,
    /// Size in pages: of the last VACUUM or ANALYZE, or exact after [`read_with_sizes`].
    pub pages: i64,
    /// Columns that exist, by number.
    pub columns: Vec<ColumnFacts>,
    /// Indexes, by oid.
    pub indexes: Vec<IndexFacts>,
    /// Digest of the row filter with which the publication sends it.
    #[serde(skip)]
    pub row_filter: Option<String>,
}

/// One column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnFacts {
    /// `attnum`.
    pub attnum: i16,
    /// Name.
    pub name: String,
    /// Type.
    pub type_oid: Oid,
    /// Type and modifier as `format_type` prints them.
    pub type_name: String,
    /// Type modifier; -1 for none.
    pub typmod: i32,
    /// NOT NULL.
    pub not_null: bool,
    /// `attgenerated`: empty, `s` stored or `v` virtual.
    pub generated: String,
    /// Its values can be stored out of line.
    pub toastable: bool,
    /// The value that rows from before the column have, where Postgres keeps it.
    pub missing: Option<String>,
    /// `typtype` of its type.
    pub typtype: char,
    /// Element type and its delimiter, for a true array.
    pub element: Option<(Oid, char)>,
}

/// One index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexFacts {
    /// Object id.
    pub oid: Oid,
    /// Name.
    pub name: String,
    /// Access method.
    pub method: String,
    /// Numbers of its key columns in order; 0 for an expression.
    pub columns: Vec<i16>,
    /// Every key column is NOT NULL.
    pub not_null: bool,
    /// UNIQUE.
    pub unique: bool,
    /// PRIMARY KEY.
    pub primary: bool,
    /// Not deferrable.
    pub immediate: bool,
    /// No expression and no predicate.
    pub plain: bool,
    /// Complete and usable.
    pub valid: bool,
    /// Chosen with REPLICA IDENTITY USING INDEX.
    pub identity: bool,
}

impl RelationFacts {
    /// The index behind the row key: the primary key, else the first unique, immediate, plain one whose
    /// columns are all NOT NULL.
    pub fn row_key(&self) -> Option<&IndexFacts> {
        let usable = |index: &&IndexFacts| {
            index.unique && index.immediate && index.plain && index.not_null && index.valid
        };
        let primary = self.indexes.iter().find(|index| index.primary);
        primary.or_else(|| self.indexes.iter().find(usable))
    }

    /// True when old rows in the stream hold this column: it is part of the replica identity.
    pub fn identifies(&self, attnum: i16) -> bool {
        let index = match self.replident {
            'f' => return true,
            'd' => self.indexes.iter().find(|index| index.primary),
            'i' => self.indexes.iter().find(|index| index.identity),
            _ => None,
        };
        index.is_some_and(|index| index.columns.contains(&attnum))
    }

    /// The column of a name.
    pub fn column(&self, name: &str) -> Option<&ColumnFacts> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// `schema.name`, for people.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// Quoted, qualified name, for SQL.
    pub fn quoted_name(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }
}

impl ColumnFacts {
    /// How its values are stored in the mirror.
    pub fn kind(&self) -> Kind {
        let element = |(oid, delimiter)| ElementFacts { oid, delimiter };
        Kind::of(&TypeFacts {
            oid: self.type_oid,
            typtype: self.typtype,
            array_of: self.element.map(element),
        })
    }
}

/// A name in double quotes, for SQL.
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
