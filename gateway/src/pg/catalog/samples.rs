//! Made-up facts for tests.

use std::collections::BTreeMap;

use rindle_proto::ids::Oid;

use super::*;
use crate::ddl::believed::First;

pub(crate) fn column(attnum: i16, name: &str, type_oid: u32) -> ColumnFacts {
    ColumnFacts {
        attnum,
        name: name.to_owned(),
        type_oid: Oid(type_oid),
        type_name: format!("type{type_oid}"),
        typmod: -1,
        not_null: false,
        generated: String::new(),
        toastable: type_oid == 25,
        missing: None,
        typtype: 'b',
        element: None,
    }
}

pub(crate) fn index(oid: u32, columns: &[i16]) -> IndexFacts {
    IndexFacts {
        oid: Oid(oid),
        name: format!("index{oid}"),
        method: "btree".to_owned(),
        columns: columns.to_vec(),
        not_null: true,
        unique: true,
        primary: false,
        immediate: true,
        plain: true,
        valid: true,
        identity: false,
    }
}

pub(crate) fn primary(columns: &[i16]) -> IndexFacts {
    IndexFacts {
        primary: true,
        ..index(90, columns)
    }
}

/// Nothing is older than this.
pub(crate) fn first(facts: Facts) -> First {
    let snapshot = "3:3:".parse().unwrap();
    First { facts, snapshot }
}

/// A table (id int, v text) with a primary key.
pub(crate) fn relation(oid: u32) -> RelationFacts {
    RelationFacts {
        oid: Oid(oid),
        schema: "public".to_owned(),
        namespace: Oid(2200),
        name: format!("t{oid}"),
        parent: None,
        kind: 'r',
        persistence: 'p',
        replident: 'd',
        owner: "o".to_owned(),
        row_security: false,
        force_row_security: false,
        filenode: oid,
        pages: 3,
        columns: vec![column(1, "id", 23), column(2, "v", 25)],
        indexes: vec![primary(&[1])],
        row_filter: None,
    }
}

pub(crate) fn table(relation: RelationFacts) -> TableFacts {
    let published = relation
        .columns
        .iter()
        .map(|column| column.name.clone())
        .collect();
    TableFacts {
        relation,
        leaves: Vec::new(),
        published,
    }
}

pub(crate) fn view(tables: Vec<TableFacts>) -> CatalogView {
    let server = ServerFacts {
        version_num: 170_006,
        encoding: "UTF8".to_owned(),
        database_oid: Oid(5),
        in_recovery: false,
    };
    let publication = PublicationFacts {
        oid: Oid(9),
        name: "p".to_owned(),
        all_tables: false,
        insert: true,
        update: true,
        delete: true,
        truncate: true,
        via_root: false,
        generated_columns: None,
        tables: Vec::new(),
        schemas: Vec::new(),
    };
    CatalogView {
        server,
        publication,
        tables,
        types: BTreeMap::new(),
    }
}

/// Facts of a publication that names every table among `relations`, whose columns' types are made up too.
pub(crate) fn facts(relations: Vec<RelationFacts>) -> Facts {
    let empty = view(Vec::new());
    let named = relations
        .iter()
        .filter(|relation| relation.parent.is_none());
    let tables = named.map(|relation| member(relation.oid)).collect();
    Facts {
        server: empty.server,
        publication: PublicationFacts {
            tables,
            ..empty.publication
        },
        relations: relations.into_iter().map(|it| (it.oid, it)).collect(),
        types: BTreeMap::new(),
    }
}

pub(crate) fn member(oid: Oid) -> Member {
    Member {
        oid,
        columns: None,
        filter: None,
    }
}
