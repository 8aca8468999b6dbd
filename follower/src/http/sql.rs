//! `POST /execute-sql-read`: one statement that only reads, within limits of time, rows and bytes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::response::Json;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{Connection, params_from_iter};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::schema::{blocking, served};
use super::{Failure, Http, parse};
use crate::gateway::sentence;
use crate::mirror;

/// Longest run of one statement.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Most rows, and bytes of their values, of one answer.
const MAX_ROWS: usize = 10_000;
const MAX_BYTES: usize = 16 << 20;

/// Statements that run at once; more wait.
const AT_ONCE: usize = 8;

/// SQLite's steps between two looks at the clock.
const STEPS: i32 = 4000;

/// Longest text that one step may make, in bytes, and longest pattern of LIKE and GLOB (their time is its square).
const MAX_VALUE_BYTES: i32 = 256 << 20;
const MAX_PATTERN_BYTES: i32 = 1000;

/// Pragmas that tell, and with a value only say about what.
const TELLING: [&str; 7] = [
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "table_info",
    "table_list",
    "table_xinfo",
];

/// Pragmas that tell without a value; with one they set something.
const TELLING_BARE: [&str; 11] = [
    "application_id",
    "collation_list",
    "compile_options",
    "data_version",
    "encoding",
    "freelist_count",
    "function_list",
    "page_count",
    "page_size",
    "schema_version",
    "user_version",
];

/// Bytes of a cell in JSON beside its digits or letters, and those of the tag around a number.
const CELL_BYTES: usize = 8;
const TAG_BYTES: usize = 48;

/// Greatest integer that every JSON reader takes exactly.
const EXACT: i64 = (1 << 53) - 1;

/// Bounds the statements that run at once. Clones share it.
#[derive(Clone)]
pub(crate) struct Queries(Arc<Semaphore>);

impl Default for Queries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

#[derive(Deserialize)]
struct Query {
    sql: String,
    #[serde(default)]
    params: Vec<Value>,
}

pub(super) async fn execute(
    Shared(http): Shared<Http>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let query: Query = parse(&body)?;
    let path = served(&http)?;
    let permit = Arc::clone(&http.queries.0).acquire_owned().await;
    let permit = permit.map_err(|_closed| Failure::unavailable("stopping"))?;
    let answer = blocking(move || {
        let answer = run(&path, &query);
        drop(permit);
        answer
    });
    answer.await.map(Json)
}

fn run(path: &Path, query: &Query) -> Result<Value, Failure> {
    let conn = reader(path)?;
    let mut statement = conn
        .prepare(&query.sql)
        .map_err(|error| Failure::bad(format!("sqlite error during read prepare: {error}")))?;
    if !statement.readonly() {
        return Err(Failure::bad(
            "the statement writes; this is a read-only mirror",
        ));
    }
    let cols: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let params: Vec<Sql> = query
        .params
        .iter()
        .map(parameter)
        .collect::<Result<_, _>>()?;
    let failed = |error: rusqlite::Error| {
        let code = error.sqlite_error_code();
        match code == Some(rusqlite::ErrorCode::OperationInterrupted) {
            true => Failure::bad(format!(
                "the statement ran longer than {} s",
                TIME_LIMIT.as_secs()
            )),
            false => Failure::bad(format!("sqlite error during read: {error}")),
        }
    };
    let mut found = statement.query(params_from_iter(params)).map_err(failed)?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next().map_err(failed)? {
        if rows.len() == MAX_ROWS {
            return Err(Failure::bad(format!(
                "the result has more than {MAX_ROWS} rows; add a LIMIT"
            )));
        }
        let cells = (0..cols.len()).map(|at| cell(row.get_ref(at).map_err(failed)?, &mut bytes));
        rows.push(Value::Array(cells.collect::<Result<_, _>>()?));
        if bytes > MAX_BYTES {
            return Err(Failure::bad(format!(
                "the result has more than {MAX_BYTES} bytes; ask for fewer columns or rows"
            )));
        }
    }
    Ok(json!({"cols": cols, "rows": rows}))
}

/// A connection that can do nothing but read this one file, and not for long.
fn reader(path: &Path) -> Result<Connection, Failure> {
    let failed = |error: rusqlite::Error| Failure::unavailable(error.to_string());
    let mut conn =
        mirror::open_reader(path).map_err(|error| Failure::unavailable(sentence(&error)))?;
    // No other file can be attached, read or (by VACUUM INTO) written.
    conn.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)
        .map_err(failed)?;
    conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        .and_then(|_before| {
            conn.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_BYTES)
        })
        .map_err(failed)?;
    conn.authorizer(Some(|context: AuthContext<'_>| allow(&context.action)))
        .map_err(failed)?;
    let deadline = Instant::now() + TIME_LIMIT;
    conn.progress_handler(STEPS, Some(move || Instant::now() >= deadline))
        .map_err(failed)?;
    Ok(conn)
}

/// Reading, and nothing that reaches beyond the statement: a pragma may set what all connections share.
fn allow(action: &AuthAction<'_>) -> Authorization {
    let harmless = match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => {
            !function_name.eq_ignore_ascii_case("load_extension")
        }
        AuthAction::Pragma {
            pragma_name,
            pragma_value,
        } => {
            let is = |name: &&str| name.eq_ignore_ascii_case(pragma_name);
            TELLING.iter().any(is) || (pragma_value.is_none() && TELLING_BARE.iter().any(is))
        }
        _ => false,
    };
    match harmless {
        true => Authorization::Allow,
        false => Authorization::Deny,
    }
}

fn parameter(value: &Value) -> Result<Sql, Failure> {
    match value {
        Value::Null => Ok(Sql::Null),
        Value::Bool(value) => Ok(Sql::Integer(i64::from(*value))),
        Value::String(text) => Ok(Sql::Text(text.clone())),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Ok(Sql::Integer(number)),
            (None, Some(number)) if !value.is_u64() => Ok(Sql::Real(number)),
            (None, _) => Err(Failure::bad(format!(
                "parameter {number} is beyond 64 bits"
            ))),
        },
        Value::Object(tagged) if tagged.get("$rindle") == Some(&json!("i64")) => {
            let text = tagged.get("value").and_then(Value::as_str);
            let number = text.and_then(|text| text.parse().ok());
            number
                .map(Sql::Integer)
                .ok_or_else(|| Failure::bad("a tagged i64 parameter needs its digits as \"value\""))
        }
        Value::Object(_) | Value::Array(_) => Err(Failure::bad(
            "a parameter is null, a boolean, a number, a string or a tagged i64",
        )),
    }
}

fn cell(value: ValueRef<'_>, bytes: &mut usize) -> Result<Value, Failure> {
    *bytes += CELL_BYTES;
    match value {
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Integer(number) if number.abs_diff(0) <= EXACT.unsigned_abs() => {
            Ok(Value::from(number))
        }
        ValueRef::Integer(number) => {
            *bytes += TAG_BYTES;
            Ok(json!({"$rindle": "i64", "value": number.to_string()}))
        }
        ValueRef::Real(number) => {
            *bytes += CELL_BYTES;
            Ok(serde_json::Number::from_f64(number).map_or_else(
                || json!({"$rindle": "f64", "value": infinity(number)}),
                Value::Number,
            ))
        }
        ValueRef::Text(text) => {
            *bytes += text.len();
            let text = std::str::from_utf8(text);
            text.map(Value::from)
                .map_err(|_not_utf8| Failure::bad("a cell is not UTF-8"))
        }
        ValueRef::Blob(_) => Err(Failure::bad("a cell is a blob; convert it with hex()")),
    }
}

/// SQLite holds no NaN, so what JSON has no number for is one of these.
fn infinity(number: f64) -> &'static str {
    match number > 0.0 {
        true => "Infinity",
        false => "-Infinity",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::{Mirror, MirrorOptions};

    fn ask(path: &Path, sql: &str, params: &Value) -> Result<Value, String> {
        let query = serde_json::from_value(json!({"sql": sql, "params": params})).unwrap();
        run(path, &query).map_err(|failure| failure.1)
    }

    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.db");
        drop(Mirror::open(&path, MirrorOptions::default()).unwrap());
        (dir, path)
    }

    #[test]
    fn values_are_exact_in_json() {
        let (_dir, path) = file();
        let sql = "SELECT ?1 AS a, ?2, ?3, ?4, ?5, 9e999, -9e999, 'NaN', NULL";
        let big = json!({"$rindle": "i64", "value": "9007199254740992"});
        let params = json!([9_007_199_254_740_991i64, big, -1.5, "x", true]);
        let answer = ask(&path, sql, &params).unwrap();
        let inf = |value: &str| json!({"$rindle": "f64", "value": value});
        let expected = json!([[
            9_007_199_254_740_991i64,
            big,
            -1.5,
            "x",
            1,
            inf("Infinity"),
            inf("-Infinity"),
            "NaN",
            null
        ]]);
        assert_eq!(answer["rows"], expected);
        assert_eq!(answer["cols"][0], "a");
    }

    #[test]
    fn nothing_but_reading_this_file_is_possible() {
        let (dir, path) = file();
        let other = dir.path().join("other.db");
        for sql in [
            "CREATE TABLE x (y)".to_owned(),
            "DELETE FROM _rindle_state".to_owned(),
            format!("ATTACH '{}' AS o", other.display()),
            format!("VACUUM INTO '{}'", other.display()),
            "PRAGMA journal_mode = DELETE".to_owned(),
            format!("PRAGMA temp_store_directory = '{}'", dir.path().display()),
            "PRAGMA query_only = off".to_owned(),
            "PRAGMA user_version = 3".to_owned(),
            "BEGIN".to_owned(),
            "SELECT 1; SELECT 2".to_owned(),
            "SELECT load_extension('x')".to_owned(),
            "SELECT x'00'".to_owned(),
            "nonsense".to_owned(),
        ] {
            let answer = ask(&path, &sql, &json!([]));
            assert!(answer.is_err(), "{sql}: {answer:?}");
        }
        assert!(!other.exists());
        let conn = Connection::open(&path).unwrap();
        let mode = conn.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0));
        assert_eq!(mode.unwrap(), "wal");
    }

    #[test]
    fn shape_of_tables_can_be_asked_for() {
        let (_dir, path) = file();
        for sql in [
            "PRAGMA table_info(_rindle_state)",
            "SELECT name FROM pragma_table_info('_rindle_state')",
            "PRAGMA user_version",
            "SELECT key FROM json_each('[1]')",
            "EXPLAIN QUERY PLAN SELECT count(*) FROM _rindle_columns",
        ] {
            let answer = ask(&path, sql, &json!([]));
            assert!(answer.is_ok(), "{sql}: {answer:?}");
        }
    }

    #[test]
    fn limits_are_told() {
        let (_dir, path) = file();
        let count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n";
        let many = format!("{count} LIMIT 10001) SELECT i FROM n");
        assert!(
            ask(&path, &many, &json!([]))
                .unwrap_err()
                .contains("add a LIMIT")
        );
        let long = format!("{count} LIMIT 40) SELECT hex(zeroblob(500000)) FROM n");
        assert!(ask(&path, &long, &json!([])).unwrap_err().contains("bytes"));
        // Tagged integers are counted as long as they are.
        let cells = ["i + 9007199254740993"; 40].join(", ");
        let tagged = format!("{count} LIMIT 9000) SELECT {cells} FROM n");
        let error = ask(&path, &tagged, &json!([])).unwrap_err();
        assert!(error.contains("bytes"), "{error}");
        for huge in [
            "SELECT length(zeroblob(300000000))",
            "SELECT 'x' LIKE hex(zeroblob(600))",
        ] {
            let error = ask(&path, huge, &json!([])).unwrap_err();
            assert!(error.contains("too"), "{huge}: {error}");
        }
        let started = Instant::now();
        let endless = format!("{count}) SELECT count(*) FROM n");
        assert!(
            ask(&path, &endless, &json!([]))
                .unwrap_err()
                .contains("longer than 5 s")
        );
        assert!(started.elapsed() < TIME_LIMIT * 2);
    }
}
