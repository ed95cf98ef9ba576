//! `cattlegrid nodes`: the nodes of a server's fleet, as that server knows them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::running::lines_of;

/// A line for each node.
///
/// # Errors
/// The server does not answer, or has no list. The text begins with its address.
pub(crate) fn table(address: &str) -> Result<String, String> {
    // The control keys of a server may begin with something else than `@`: then it says that it has no such
    // key.
    let lines = lines_of(address, "get @nodes").map_err(|error| format!("{address}: {error}"))?;
    let found = lines.iter().find(|line| line.starts_with('['));
    let list = found.and_then(|line| serde_json::from_str::<Value>(line).ok());
    let Some(Value::Array(nodes)) = list else {
        return Err(format!(
            "{address}: has no rule file with a [follow.NAME] of etcd, or other control keys than @"
        ));
    };
    Ok(write_table(&nodes))
}

fn write_table(nodes: &[Value]) -> String {
    let cell = |node: &Value, name: &str| match &node[name] {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let names = ["name", "address", "state", "applied", "lag_ms", "version"];
    let mut rows = vec![names.map(str::to_uppercase)];
    rows.extend(nodes.iter().map(|node| names.map(|name| cell(node, name))));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _infallible = write!(line, "{cell:<width$}  ");
        }
        let _infallible = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let nodes = serde_json::json!([
            {"name": "a", "address": "10.0.0.1:11211", "state": "up", "applied": 12, "lag_ms": 3, "version": "0.1.0"},
            {"name": "shop-2", "address": "b:1", "state": "joining", "applied": 0, "lag_ms": null, "version": "0.1.0"},
        ]);
        let text = write_table(nodes.as_array().unwrap());
        let expected = "\
NAME    ADDRESS         STATE    APPLIED  LAG_MS  VERSION
a       10.0.0.1:11211  up       12       3       0.1.0
shop-2  b:1             joining  0        -       0.1.0
";
        assert_eq!(text, expected);
    }
}
