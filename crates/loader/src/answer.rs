//! The answer of a worker: a value, or that no value exists.
//!
//! A worker with frames answers with the list of [`wire::Answer`], one with JSON lines with an object:
//!
//! ```json
//! {"id":"1","value":"...","ttl":60,"flags":0,"tags":["a"]}     with "base64":true if the value is base64
//! {"id":"1","not_found":5}                                      true: the rule's negative_ttl
//! ```
//! What is not exactly that is an error whose text names what is expected; members that are `null` are as
//! absent.
//!
//! # Invariants
//! * No bytes make this code panic.
//! * The value of a list is not copied: it stays in the bytes that came from the worker.

use arrayvec::ArrayVec;
use cattlegrid_config::LoaderMode;
use cattlegrid_engine::LoadEnd;
use cattlegrid_engine::rules::TAGS_MAX;
use cattlegrid_pool::{Reply, base64};
use cattlegrid_worker::loader::wire;
use serde_json::{Map, Value};

/// A checked answer.
#[derive(Debug)]
pub(crate) enum LoaderAnswer {
    /// A list that [`wire::Answer`] can read.
    List(Reply),
    /// A value from JSON.
    Value { data: Vec<u8>, ttl: Option<i32>, flags: u32, tags: Vec<String> },
    /// No value, from JSON.
    NotFound { ttl: Option<u32> },
}

impl LoaderAnswer {
    /// Reads the answer of a worker of a loader in this mode.
    ///
    /// # Errors
    /// The fault of the answer, and what was expected, in a line.
    pub(crate) fn read(reply: Reply, mode: LoaderMode) -> Result<Self, String> {
        if mode != LoaderMode::JsonLines {
            return match wire::Answer::parse(reply.parts()) {
                Ok(_) => Ok(Self::List(reply)),
                Err(error) => Err(error.to_string()),
            };
        }
        object(reply.part(0))
    }

    /// Whether the answer has a value.
    pub(crate) fn is_value(&self) -> bool {
        self.with_end(|end| matches!(end, LoadEnd::Value { .. }))
    }

    /// The value's client flags; 0 without a value.
    pub(crate) fn flags(&self) -> u32 {
        self.with_end(|end| if let LoadEnd::Value { flags, .. } = end { *flags } else { 0 })
    }

    /// The value's length in bytes; 0 without a value.
    pub(crate) fn value_len(&self) -> usize {
        self.with_end(|end| match end {
            LoadEnd::Value { data, .. } => data.len(),
            LoadEnd::NotFound { .. } | LoadEnd::Failed { .. } => 0,
        })
    }

    /// Passes the answer, in the form that the engine takes, to `use_it`.
    pub(crate) fn with_end<R>(&self, use_it: impl FnOnce(&LoadEnd<'_>) -> R) -> R {
        match self {
            Self::List(reply) => match wire::Answer::parse(reply.parts()) {
                Ok(wire::Answer::Value { value, ttl, flags, tags }) => {
                    use_it(&LoadEnd::Value { data: value, flags, ttl_s: ttl.map(i64::from), tags: &tags })
                }
                Ok(wire::Answer::NotFound { ttl }) => use_it(&LoadEnd::NotFound { ttl_s: ttl }),
                Err(_) => unreachable!("it was read before"),
            },
            Self::Value { data, ttl, flags, tags } => {
                let tags: ArrayVec<&[u8], TAGS_MAX> = tags.iter().map(String::as_bytes).collect();
                let (flags, ttl_s) = (*flags, ttl.map(i64::from));
                use_it(&LoadEnd::Value { data, flags, ttl_s, tags: &tags })
            }
            Self::NotFound { ttl } => use_it(&LoadEnd::NotFound { ttl_s: *ttl }),
        }
    }
}

/// The members of an answer. `type` is allowed because jobs have it, and is ignored.
const MEMBERS: [&str; 8] = ["id", "type", "value", "base64", "ttl", "flags", "tags", "not_found"];

fn object(text: &[u8]) -> Result<LoaderAnswer, String> {
    let mut members: Map<String, Value> =
        serde_json::from_slice(text).map_err(|error| format!("the answer is not a JSON object: {error}"))?;
    members.retain(|name, value| !is_absent(name, value));
    if let Some(name) = members.keys().find(|name| !MEMBERS.contains(&name.as_str())) {
        return Err(format!(
            "member {} of the answer is unknown; an answer has value (with base64, ttl, flags, tags) or not_found",
            shown(&Value::from(name.as_str()))
        ));
    }
    let not_found = members.remove("not_found").filter(|value| *value != Value::Bool(false));
    match (members.remove("value"), not_found) {
        // One of the two members is its type's zero value.
        (Some(value), Some(none)) if none == 0 => value_of(value, &members),
        (Some(value), Some(none)) if value == "" => not_found_of(&none, &members),
        (Some(_), Some(_)) => Err("the answer has both value and not_found; send one of them".to_owned()),
        (Some(value), None) => value_of(value, &members),
        (None, Some(not_found)) => not_found_of(&not_found, &members),
        (None, None) => Err("the answer has neither value nor not_found; send one of them".to_owned()),
    }
}

/// Whether a member counts as absent: it is `null`, or a serialiser wrote the zero value of a field that the
/// worker did not set.
fn is_absent(name: &str, value: &Value) -> bool {
    match name {
        "ready" | "retire" | "pong" | "more" => matches!(value, Value::Null | Value::Bool(false)),
        "error" => value.is_null() || value == "",
        _ => value.is_null(),
    }
}

fn value_of(value: Value, members: &Map<String, Value>) -> Result<LoaderAnswer, String> {
    let Value::String(text) = value else {
        return Err(format!("value: {}; a string is expected, for JSON its text", kind_of(&value)));
    };
    let data = match members.get("base64") {
        None | Some(Value::Bool(false)) => text.into_bytes(),
        Some(Value::Bool(true)) => base64::decode(&text)
            .ok_or("value: it is not base64 (with padding), which base64 says that it is")?,
        Some(other) => return Err(format!("base64: {}; true or false is expected", shown(other))),
    };
    let ttl = number(members, "ttl", "whole seconds, -2147483648 to 2147483647; none for the rule's")?;
    let flags = number(members, "flags", "a number, 0 to 4294967295")?.unwrap_or(0);
    let tags = match members.get("tags") {
        None => Vec::new(),
        Some(Value::Array(tags)) => tags
            .iter()
            .map(|tag| {
                tag.as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| format!("tags: {}; strings are expected", shown(tag)))
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(format!("tags: {}; a list of strings is expected", shown(other))),
    };
    if tags.len() > TAGS_MAX {
        return Err(format!("tags: {} of them; at most {TAGS_MAX}", tags.len()));
    }
    wire::Tags::new(tags.iter().map(String::as_bytes)).map_err(|error| error.to_string())?;
    Ok(LoaderAnswer::Value { data, ttl, flags, tags })
}

fn not_found_of(value: &Value, members: &Map<String, Value>) -> Result<LoaderAnswer, String> {
    if let Some(name) =
        ["ttl", "flags", "tags", "base64"].into_iter().find(|name| members.get(*name).is_some_and(is_set))
    {
        return Err(format!("{name}: not_found has none; its seconds are its value: \"not_found\":5"));
    }
    if *value == Value::Bool(true) {
        return Ok(LoaderAnswer::NotFound { ttl: None });
    }
    let seconds = value.as_i64().filter(|seconds| (1..=i64::from(i32::MAX)).contains(seconds));
    let ttl = seconds.and_then(|seconds| u32::try_from(seconds).ok());
    ttl.map(|ttl| LoaderAnswer::NotFound { ttl: Some(ttl) }).ok_or_else(|| {
        format!(
            "not_found: {}; seconds from 1 to 2147483647, or true for the rule's negative_ttl, are expected",
            shown(value)
        )
    })
}

/// Whether a value is not its type's zero value.
fn is_set(value: &Value) -> bool {
    !(*value == 0 || *value == false || value.as_array().is_some_and(Vec::is_empty))
}

/// The member `name` as a whole number of this type; None: it is absent.
fn number<T: TryFrom<i64>>(
    members: &Map<String, Value>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, String> {
    let Some(value) = members.get(name) else { return Ok(None) };
    let number = value.as_i64().and_then(|number| T::try_from(number).ok());
    number.map(Some).ok_or_else(|| format!("{name}: {}; expected is {expected}", shown(value)))
}

/// The name of a value's kind for the text of an error. The value itself must not be logged, because caches
/// hold private data.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The beginning of a member other than the value, for an error's text.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let mut chars = text.chars();
    let head: String = chars.by_ref().take(SHOWN_CHARS).collect();
    if chars.next().is_some() { format!("{head}...") } else { head }
}

/// Most characters of a worker's text in a message.
const SHOWN_CHARS: usize = 40;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<String, String> {
        object(text.as_bytes()).map(|answer| answer.with_end(|end| format!("{end:?}")))
    }

    #[test]
    fn objects_that_are_answers() {
        for (text, expected) in [
            (r#"{"id":"1","value":"x"}"#, "Value { data: [120], flags: 0, ttl_s: None, tags: [] }"),
            (
                r#"{"value":"/w==","base64":true,"ttl":-1,"flags":4294967295,"tags":["a"],"not_found":false}"#,
                "Value { data: [255], flags: 4294967295, ttl_s: Some(-1), tags: [[97]] }",
            ),
            (
                r#"{"value":"","ttl":null,"flags":null,"tags":null,"not_found":null}"#,
                "Value { data: [], flags: 0, ttl_s: None, tags: [] }",
            ),
            (
                r#"{"result":null,"error":null,"event":null,"log":null,"retire":false,"more":false,"value":"x"}"#,
                "Value { data: [120], flags: 0, ttl_s: None, tags: [] }",
            ),
            (
                r#"{"error":"","value":"x","not_found":0,"base64":false,"ttl":0}"#,
                "Value { data: [120], flags: 0, ttl_s: Some(0), tags: [] }",
            ),
            (
                r#"{"value":"","not_found":5,"ttl":0,"flags":0,"tags":[],"base64":false}"#,
                "NotFound { ttl_s: Some(5) }",
            ),
            (r#"{"not_found":true}"#, "NotFound { ttl_s: None }"),
            (r#"{"id":"1","not_found":5}"#, "NotFound { ttl_s: Some(5) }"),
            (r#"{"not_found":2147483647}"#, "NotFound { ttl_s: Some(2147483647) }"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
        let eight = r#"{"value":"","tags":["1","2","3","4","5","6","7","8"]}"#;
        assert!(read(eight).unwrap().contains("[56]]"));
    }

    #[test]
    fn objects_that_are_none_say_what_is_expected() {
        let long = format!(r#"{{"value":"","tags":["{}"]}}"#, "x".repeat(201));
        for (text, expected) in [
            ("", "not a JSON object"),
            ("[1]", "not a JSON object"),
            ("{}", "neither value nor not_found"),
            (r#"{"value":"x","not_found":1}"#, "both value and not_found"),
            (r#"{"value":"x","tag":["a"]}"#, "member \"tag\" of the answer is unknown"),
            (r#"{"value":7}"#, "value: a number; a string"),
            (r#"{"value":{"a":1}}"#, "value: an object; a string is expected, for JSON its text"),
            (r#"{"value":"x","base64":true}"#, "it is not base64"),
            (r#"{"value":"x","base64":1}"#, "base64: 1; true or false"),
            (r#"{"value":"x","ttl":1.5}"#, "ttl: 1.5; expected is whole seconds"),
            (r#"{"value":"x","ttl":2147483648}"#, "ttl: 2147483648; expected is whole seconds"),
            (r#"{"value":"x","ttl":"60"}"#, "ttl: \"60\"; expected is whole seconds"),
            (r#"{"value":"x","flags":-1}"#, "flags: -1; expected is a number"),
            (r#"{"value":"x","flags":4294967296}"#, "flags: 4294967296; expected"),
            (r#"{"value":"x","tags":"a"}"#, "tags: \"a\"; a list of strings"),
            (r#"{"value":"x","tags":[1]}"#, "tags: 1; strings"),
            (r#"{"value":"x","tags":["1","2","3","4","5","6","7","8","9"]}"#, "tags: 9 of them; at most 8"),
            (r#"{"value":"x","tags":["a b"]}"#, "no blanks"),
            (r#"{"value":"x","tags":[""]}"#, "1 to 200 bytes, not 0"),
            (&long, "1 to 200 bytes, not 201"),
            (r#"{"not_found":0}"#, "not_found: 0; seconds from 1"),
            (r#"{"not_found":-5}"#, "not_found: -5; seconds from 1"),
            (r#"{"not_found":"x"}"#, "not_found: \"x\"; seconds from 1"),
            (r#"{"not_found":5,"ttl":7}"#, "ttl: not_found has none"),
            (r#"{"value":null,"result":null}"#, "neither value nor not_found"),
            (r#"{"value":"x","retire":"no"}"#, "member \"retire\" of the answer is unknown"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let error = read(&format!(r#"{{"value":"x","ttl":"{}"}}"#, "ü".repeat(1000))).unwrap_err();
        assert!(error.len() < 200, "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _either = object(&bytes);
        }

        #[test]
        fn any_object_is_an_answer_or_an_error_in_one_line(
            members in proptest::collection::vec((0..10_usize, 0..14_usize), 0..6),
            text in ".{0,30}",
        ) {
            let names = ["id", "type", "value", "base64", "ttl", "flags", "tags", "not_found", "x", ""];
            let mut object_text = Map::new();
            for (name, value) in members {
                let value = match value {
                    0 => Value::Null,
                    1 => true.into(),
                    2 => false.into(),
                    3 => 0.into(),
                    4 => (-1).into(),
                    5 => 5.into(),
                    6 => i64::MAX.into(),
                    7 => u64::MAX.into(),
                    8 => 1.5.into(),
                    9 => "Zg==".into(),
                    10 => vec!["a"; 9].into(),
                    11 => vec!["a", "b"].into(),
                    _ => text.clone().into(),
                };
                object_text.insert(names[name].to_owned(), value);
            }
            match object(Value::from(object_text).to_string().as_bytes()) {
                Ok(answer) => answer.with_end(|end| assert!(!matches!(end, LoadEnd::Failed { .. }))),
                Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error}"),
            }
        }
    }
}
