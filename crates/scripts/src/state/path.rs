//! Places in a table, for messages: `field 'a.b[3]'`.

use std::fmt::Write as _;

use mlua::Value;

/// The place of a value: keys, the outermost first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Name(String),
    Number(f64),
}

impl Path {
    /// Descends to the value under this key.
    pub(crate) fn enter(&mut self, key: &Value) {
        self.0.push(match key {
            Value::String(name) => Step::Name(name.to_string_lossy()),
            Value::Integer(number) => Step::Number(*number as f64),
            Value::Number(number) => Step::Number(*number),
            _ => Step::Name("?".to_owned()),
        });
    }

    /// Goes back to the outer value.
    pub(crate) fn leave(&mut self) {
        self.0.pop();
    }

    /// The place in a message; `whole`: the name of the whole table.
    pub(crate) fn describe(&self, whole: &str) -> String {
        let mut path = String::new();
        for step in &self.0 {
            let written = match step {
                Step::Name(name) if is_name(name) && path.is_empty() => write!(path, "{name}"),
                Step::Name(name) if is_name(name) => write!(path, ".{name}"),
                Step::Name(name) => write!(path, "[{name:?}]"),
                Step::Number(number) => write!(path, "[{number}]"),
            };
            debug_assert!(written.is_ok(), "a String takes everything");
        }
        if path.is_empty() { whole.to_owned() } else { format!("field '{path}'") }
    }
}

fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c == '_' || c.is_ascii_alphanumeric();
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(is_letter)
}

/// The kind of a value, for messages.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        Value::LightUserData(_) => "collection",
        Value::Error(_) | Value::Other(_) => "userdata",
        other => other.type_name(),
    }
}
