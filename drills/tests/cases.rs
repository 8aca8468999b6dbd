//! Every case file, by stream, by copy and by image; and the case files themselves against Postgres alone.

use std::path::{Path, PathBuf};

use rindle_drills::{cases::Case, oracle, postgres::Server, run_dir::RunDir};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases")
}

fn load(name: &str) -> Case {
    Case::load(&folder().join(format!("{name}.sql"))).unwrap()
}

macro_rules! mirrored {
    ($($test:ident $file:literal)*) => {
        $(mod $test {
            #[tokio::test]
            async fn streamed_then_imaged() {
                let server = rindle_drills::postgres::Server::start().await.unwrap();
                super::load($file).streamed_then_imaged(&server).await.unwrap();
            }

            #[tokio::test]
            async fn copied() {
                let server = rindle_drills::postgres::Server::start().await.unwrap();
                super::load($file).copied(&server).await.unwrap();
            }
        })*
        const MIRRORED: &[&str] = &[$($file),*];
    };
}

macro_rules! refused {
    ($($test:ident $file:literal)*) => {
        $(#[tokio::test]
        async fn $test() {
            let server = Server::start().await.unwrap();
            load($file).is_refused(&server).await.unwrap();
        })*
        const REFUSED: &[&str] = &[$($file),*];
    };
}

macro_rules! halted {
    ($($test:ident $file:literal)*) => {
        $(mod $test {
            #[tokio::test]
            async fn stops_then_moves() {
                let server = rindle_drills::postgres::Server::start().await.unwrap();
                super::load($file).stops_then_moves(&server).await.unwrap();
            }

            #[tokio::test]
            async fn copied() {
                let server = rindle_drills::postgres::Server::start().await.unwrap();
                super::load($file).copied(&server).await.unwrap();
            }
        })*
        const HALTED: &[&str] = &[$($file),*];
    };
}

mirrored! {
    numeric "D01-numeric"
    far_dates "D02-far-dates"
    database_settings "D03-database-settings"
    arrays "D04-arrays"
    key_of_odd_types "D05-key-of-odd-types"
    json "D06-json"
    bytea "D07-bytea"
    number_like_text "D08-number-like-text"
    enum_grows "D09-enum-grows"
    enum_label_of_untouched_rows "D09-untouched-label"
    hostile_names "D11-hostile-names"
    evaluated_defaults "D12-evaluated-defaults"
    traded_names "D13-traded-names"
    second_life "D14-second-life"
    expression_dropped "D16-expression-dropped"
    partitions_via_root "D17-partitions-via-root"
    partitions_prepared "D17-partitions-prepared"
    row_filter "D18-row-filter"
    untouched_large_values "D19-untouched-large-values"
    swaps_and_cycles "D20-swaps-and-cycles"
    truncate "D21-truncate"
    logical_messages "D22-logical-messages"
}

halted! {
    key_under_its_old_name "D15-key-under-its-old-name"
}

refused! {
    names_that_differ_in_case_are_refused "D10-case-of-names"
    sql_ascii_is_refused "D23-sql-ascii"
}

#[test]
fn every_file_is_run() {
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    files.sort();
    let mut run = [MIRRORED, HALTED, REFUSED].concat();
    run.sort_unstable();
    assert_eq!(files, run);
}

/// The literal end states are what Postgres says, put through the oracle's type table.
#[tokio::test]
async fn the_literals_are_true_of_postgres() {
    let server = Server::start().await.unwrap();
    let dir = RunDir::new("literals").unwrap();
    for (n, name) in MIRRORED.iter().chain(HALTED).enumerate() {
        let case = load(name);
        assert!(!case.expect.is_empty(), "{name} expects nothing");
        let database = format!("case{n}");
        server
            .create_database(&database, &case.database_options)
            .await
            .unwrap();
        let sql = format!("{}{}", case.setup, case.stream);
        let errors = server.psql(&database, &sql).unwrap();
        assert!(!errors.contains("ERROR"), "{name}: {errors}");
        let session = server.session(&database).await.unwrap();
        if case.publication().is_none() {
            let tables = case.prepare.join(", ");
            session
                .run(&format!("create publication made for table {tables}"))
                .await
                .unwrap();
        }
        let publication = case.publication().unwrap_or_else(|| "made".to_owned());
        let file = dir.join(&database);
        oracle::write_model(&session, &publication, &file)
            .await
            .unwrap();
        case.must_expect(&file)
            .unwrap_or_else(|err| panic!("{name}: {err:#}"));
    }
}
