//! What every program says of a configuration file that does not parse.

/// Reads a JSON configuration. An unknown key is told with the nearest known one.
///
/// # Errors
/// A sentence that names the key or the place.
pub fn from_json<T: for<'de> serde::Deserialize<'de>>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| explain(&error.to_string()))
}

/// Shortens serde's "unknown field … expected one of …" to the nearest key.
fn explain(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((unknown, known)) if message.starts_with("unknown field") => {
            match nearest(unknown, known) {
                Some(near) => format!("unknown key {unknown:?}; did you mean {near:?}?"),
                None => format!("unknown key {unknown:?}"),
            }
        }
        _ => message.to_owned(),
    }
}

fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .copied()
        .min_by_key(|key| distance(unknown, key))
}

/// Edits from one word to the other, letters' case apart.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.to_lowercase().chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    #[allow(dead_code)]
    struct Sample {
        grpc_port: Option<u16>,
        http_port: Option<u16>,
    }

    #[test]
    fn names_the_nearest_key() {
        let error = from_json::<Sample>(r#"{"grpcprt": 1}"#).unwrap_err();
        assert_eq!(error, "unknown key \"grpcprt\"; did you mean \"grpcPort\"?");
        assert!(
            from_json::<Sample>(r#"{"grpcPort": "x"}"#)
                .unwrap_err()
                .contains("line 1")
        );
    }
}
