//! The house rules that a compiler does not check: which crate may see which, how long a file may be, and that designs/002
//! names tests that there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

const LINES_MAX: usize = 600;

/// Packages that a crate of ours must not have among its dependencies, near or far.
const KEPT_OUT: [(&str, &[&str]); 5] = [
    (
        "rindle-proto",
        &["object_store", "rusqlite", "tokio-postgres"],
    ),
    ("rindle-archive", &["rusqlite", "tokio-postgres"]),
    ("rindle-gateway", &["rusqlite", "rindle-follower"]),
    ("rindle-follower", &["tokio-postgres", "rindle-gateway"]),
    ("rindle-producer", &["rindle-gateway", "tokio-postgres"]),
];

/// Packages that a crate must not name itself. (tonic brings tokio along, and cargo tells the features of the whole
/// workspace, so these cannot be asked for far away.)
const NOT_NAMED: [(&str, &[&str]); 2] =
    [("rindle-proto", &["tokio"]), ("rindle-archive", &["tonic"])];

/// Ours that a crate may name at all.
const MAY_NAME: [(&str, &[&str]); 8] = [
    ("rindle-serve", &[]),
    ("rindle-proto", &[]),
    ("rindle-archive", &["rindle-proto"]),
    (
        "rindle-gateway",
        &["rindle-proto", "rindle-archive", "rindle-serve"],
    ),
    (
        "rindle-follower",
        &["rindle-proto", "rindle-archive", "rindle-serve"],
    ),
    (
        "rindle-producer",
        &["rindle-proto", "rindle-archive", "rindle-follower"],
    ),
    (
        "rindle-cli",
        &[
            "rindle-proto",
            "rindle-archive",
            "rindle-gateway",
            "rindle-follower",
            "rindle-producer",
        ],
    ),
    // The server of buckets alone: see below.
    ("rindle-drills", &["rindle-archive"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn metadata() -> Value {
    // Packages of other platforms need not be on this machine.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", &platform])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Package id to the ids of what it needs to run (not what its tests and build scripts need).
fn needs(metadata: &Value) -> BTreeMap<String, Vec<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    nodes
        .iter()
        .map(|node| {
            let deps = node["deps"].as_array().unwrap().iter().filter(|dep| {
                dep["dep_kinds"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|kind| kind["kind"].is_null())
            });
            let deps = deps
                .map(|dep| dep["pkg"].as_str().unwrap().to_owned())
                .collect();
            (node["id"].as_str().unwrap().to_owned(), deps)
        })
        .collect()
}

fn names(metadata: &Value) -> BTreeMap<String, String> {
    let packages = metadata["packages"].as_array().unwrap();
    packages
        .iter()
        .map(|p| {
            (
                p["id"].as_str().unwrap().to_owned(),
                p["name"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

#[test]
fn crates_keep_out_what_the_rules_keep_out() {
    let metadata = metadata();
    let (needs, names) = (needs(&metadata), names(&metadata));
    for (krate, kept_out) in KEPT_OUT {
        let (id, _) = names.iter().find(|(_, name)| *name == krate).unwrap();
        let mut seen = BTreeSet::from([id]);
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            for dep in &needs[id] {
                if seen.insert(dep) {
                    todo.push(dep);
                }
            }
        }
        for id in seen {
            assert!(
                !kept_out.contains(&names[id].as_str()),
                "{krate} must not need {}",
                names[id]
            );
        }
    }
}

#[test]
fn crates_name_only_those_below_them() {
    let metadata = metadata();
    let (needs, names) = (needs(&metadata), names(&metadata));
    let ours: BTreeSet<&str> = MAY_NAME.iter().map(|(name, _)| *name).collect();
    for (krate, may_name) in MAY_NAME {
        let (id, _) = names.iter().find(|(_, name)| *name == krate).unwrap();
        for dep in &needs[id] {
            let dep = names[dep].as_str();
            assert!(
                !ours.contains(dep) || may_name.contains(&dep),
                "{krate} names {dep}"
            );
            let not_named = NOT_NAMED.iter().filter(|(name, _)| *name == krate);
            for (_, packages) in not_named {
                assert!(!packages.contains(&dep), "{krate} names {dep}");
            }
        }
    }
}

/// Every Rust file of ours.
fn source_files() -> Vec<PathBuf> {
    let mut todo: Vec<PathBuf> = MAY_NAME
        .iter()
        .map(|(name, _)| root().join(name.strip_prefix("rindle-").unwrap()))
        .collect();
    let mut files = Vec::new();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(
                std::fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    files
}

/// What a drill compares with shares nothing with the programs.
#[test]
fn drills_take_nothing_of_ours_but_the_bucket_server() {
    let mut seen = 0;
    for path in source_files() {
        if !path.starts_with(root().join("drills")) || path.ends_with("tidy.rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for line in source
            .lines()
            .filter(|line| line.contains("rindle_archive"))
        {
            seen += 1;
            let path = path.display();
            assert!(
                line.contains("rindle_archive::bucket_server"),
                "{path}: {line}"
            );
        }
    }
    assert!(seen > 0);
}

#[test]
fn no_source_file_is_too_long() {
    let files = source_files();
    for path in &files {
        let lines = std::fs::read_to_string(path).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", path.display());
    }
    assert!(files.len() > 20, "only {} files were seen", files.len());
}

/// Rows that designs/002 must have.
fn facts() -> Vec<String> {
    let groups = [("A", 1, 12), ("B", 1, 9), ("C", 1, 4), ("H", 1, 10)];
    let scenarios = ("", 18, 26);
    let all = groups.into_iter().chain([scenarios]);
    all.flat_map(|(letter, first, last)| (first..=last).map(move |n| format!("{letter}{n}")))
        .collect()
}

/// Functions that are tests: their attribute stands before them.
fn tests_of(source: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        let line = line.strip_prefix("async ").unwrap_or(line);
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
            found.insert(rest.split(['(', '<']).next().unwrap_or(rest));
            is_test = false;
        }
    }
    found
}

#[test]
fn each_fact_of_postgres_names_tests_that_there_are() {
    let sources: Vec<String> = source_files()
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let tests: BTreeSet<&str> = sources.iter().flat_map(|source| tests_of(source)).collect();
    let page = std::fs::read_to_string(root().join("designs/002-facts-of-postgres.md")).unwrap();
    let mut rows = BTreeSet::new();
    let mut named = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (Some(id), Some(last)) = (cells.first(), cells.last()) else {
            continue;
        };
        if !facts().iter().any(|fact| fact == id) {
            continue;
        }
        let names: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{id} names no test");
        for name in &names {
            assert!(tests.contains(name), "{id} names {name}, which is no test");
        }
        assert!(rows.insert((*id).to_owned()), "{id} has two rows");
        named.extend(names);
    }
    let lacking: Vec<String> = facts()
        .into_iter()
        .filter(|id| !rows.contains(id))
        .collect();
    assert_eq!(lacking, Vec::<String>::new());
    // And the other way round: a test with the id of a fact in front is on the page.
    let ids: Vec<String> = facts().iter().map(|id| id.to_lowercase() + "_").collect();
    let is_of_a_fact = |test: &&&str| {
        let first = test.chars().next().is_some_and(char::is_alphabetic);
        first && ids.iter().any(|id| test.starts_with(id.as_str()))
    };
    let untold: Vec<&&str> = tests
        .iter()
        .filter(is_of_a_fact)
        .filter(|test| !named.contains(*test))
        .collect();
    assert_eq!(untold, Vec::<&&str>::new());
}
