//! Random writes to whatever tables there are.

use super::{
    Maker,
    state::{Column, Table},
};

impl Maker<'_> {
    /// Statements that change rows.
    pub(super) fn write(&mut self) -> Option<Vec<String>> {
        let tables: Vec<&Table> = self.state.tables.iter().collect();
        if tables.is_empty() {
            return None;
        }
        let table = *self.rng.pick(&tables);
        let sql = match self.rng.below(12) {
            0..=4 => self.insert(table),
            5..=7 => self.update(table)?,
            8 => self.move_keys(table)?,
            9 => self.delete(table),
            10 => self.between_partitions(table)?,
            _ if self.rng.one_in(3) => format!("truncate {}", table.full()),
            _ => self.delete(table),
        };
        Some(vec![sql])
    }

    /// An expression for a column, over a number `n` that differs from row to row.
    pub(super) fn value(&mut self, column: &Column) -> Option<String> {
        let salt = self.rng.below(1000);
        if self.rng.one_in(12) {
            return Some("null".to_owned());
        }
        let of = column.of.as_str();
        if let Some(element) = of.strip_suffix("[]") {
            let of = element.to_owned();
            let element = self.value(&Column {
                of,
                ..column.clone()
            })?;
            return Some(format!("array[{element}, {element}, null]::{}", column.of));
        }
        let word = of.split(['(', ' ']).next().unwrap_or(of);
        Some(match word {
            "smallint" | "integer" | "bigint" => format!("(n * 7 + {salt}) % 30000"),
            "text" | "character" if self.rng.one_in(4) => format!(
                "(select string_agg(md5((n * 1000 + i + {salt})::text), '') from generate_series(1, 120) i)"
            ),
            "text" | "character" => format!("'v{salt} ' || n"),
            "numeric" => format!("(n + {salt}) / 7.0"),
            "double" | "real" => format!("(n + {salt}) / 3.0"),
            "boolean" => "n % 2 = 0".to_owned(),
            "timestamp" => format!("timestamp '2024-01-01' + (n + {salt}) * interval '1 minute'"),
            "uuid" => format!("md5((n + {salt})::text)::uuid"),
            "bytea" => format!("decode(md5((n + {salt})::text), 'hex')"),
            "jsonb" => format!("jsonb_build_object('a', n, 'b', {salt})"),
            "interval" => format!("(n + {salt}) * interval '1 second'"),
            _ => return self.value_of_type(of, salt),
        })
    }

    fn value_of_type(&mut self, of: &str, salt: u64) -> Option<String> {
        let found = self.state.of_type(of)?;
        let full = &found.name;
        Some(match found.kind.as_str() {
            "e" => format!("'{}'::{full}", self.rng.pick(&found.labels)),
            "d" => format!("(n + {salt}) % 30000"),
            _ => {
                let cells: Vec<String> = found
                    .attributes
                    .iter()
                    .map(|_| format!("(n + {salt})"))
                    .collect();
                format!("row({})::{full}", cells.join(", "))
            }
        })
    }

    fn insert(&mut self, table: &Table) -> String {
        let from = self.rng.below(600);
        let to = from + self.rng.below(12);
        let mut names = Vec::new();
        let mut values = Vec::new();
        for column in &table.columns {
            if column.key {
                names.push(column.name.clone());
                values.push(match names.len() {
                    1 => "n".to_owned(),
                    _ => self.partition_value(table),
                });
            } else if !column.generated
                && !column.identity
                && !self.rng.one_in(6)
                && let Some(value) = self.value(column)
            {
                names.push(column.name.clone());
                values.push(value);
            }
        }
        let (table, names, values) = (table.full(), names.join(", "), values.join(", "));
        format!(
            "insert into {table}({names}) select {values} from generate_series({from}, {to}) n on conflict do nothing"
        )
    }

    /// A value of the partition key for which there is a partition.
    fn partition_value(&mut self, table: &Table) -> String {
        let own: Vec<String> = match &table.bound {
            Some(bound) => vec![listed(bound)],
            None => self
                .state
                .leaves(table)
                .filter_map(|leaf| leaf.bound.as_deref().map(listed))
                .collect(),
        };
        match own.is_empty() {
            true => "1".to_owned(),
            false => self.rng.pick(&own).clone(),
        }
    }

    /// `from (…) w(n)` and a condition that gives a few rows.
    fn some_rows(&mut self, table: &Table) -> String {
        let from = self.rng.below(600);
        let to = from + self.rng.below(40);
        format!("{} between {from} and {to}", table.id())
    }

    fn update(&mut self, table: &Table) -> Option<String> {
        let columns: Vec<&Column> = table
            .plain()
            .into_iter()
            .filter(|it| !it.generated && !it.identity)
            .collect();
        if columns.is_empty() {
            return None;
        }
        // Few columns, so that large values are often left as they are.
        let mut set = Vec::new();
        for _ in 0..=self.rng.below(2) {
            let column = *self.rng.pick(&columns);
            let value = self
                .value(column)?
                .replace("(n ", &format!("({} ", table.id()));
            let value = word_n(&value, table.id());
            if !set
                .iter()
                .any(|other: &String| other.starts_with(&format!("{} =", column.name)))
            {
                set.push(format!("{} = {value}", column.name));
            }
        }
        let rows = self.some_rows(table);
        Some(format!(
            "update {} set {} where {rows}",
            table.full(),
            set.join(", ")
        ))
    }

    /// Keys change; by a number that leaves them on their side of every row filter of the drill, since a row that moves
    /// into a filter lacks its large values.
    fn move_keys(&mut self, table: &Table) -> Option<String> {
        if self.state.tables.is_empty() {
            return None;
        }
        let (id, by) = (table.id(), 6 * self.rng.between(1, 200));
        let rows = self.some_rows(table);
        Some(format!(
            "update {} set {id} = {id} + {by} where {rows}",
            table.full()
        ))
    }

    fn delete(&mut self, table: &Table) -> String {
        let rows = self.some_rows(table);
        format!("delete from {} where {rows}", table.full())
    }

    fn between_partitions(&mut self, table: &Table) -> Option<String> {
        if table.kind != "p" {
            return None;
        }
        let key = &table
            .columns
            .iter()
            .filter(|column| column.key)
            .nth(1)?
            .name;
        let to = self.partition_value(table);
        let rows = self.some_rows(table);
        Some(format!(
            "update {} set {key} = {to} where {rows}",
            table.full()
        ))
    }
}

/// The value in `FOR VALUES IN (3)`.
fn listed(bound: &str) -> String {
    bound.chars().filter(char::is_ascii_digit).collect()
}

/// Puts a column in the place of the free word `n`.
fn word_n(expression: &str, id: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    let mut quoted = false;
    for c in expression.chars().chain(std::iter::once(' ')) {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        out.push_str(if word == "n" && !quoted { id } else { &word });
        word.clear();
        quoted ^= c == '\'';
        out.push(c);
    }
    out.trim_end().to_owned()
}
