//! The answer to `get @why:`, in JSON.

use cattlegrid_config::parameters;
use cattlegrid_engine::Why;
use serde_json::Value;

/// The facts that the engine has collected, and the parameters of the rule as a rule file has them, in JSON.
pub(crate) fn text(why: &Why) -> String {
    let Ok(mut said) = serde_json::to_value(why) else { return String::new() };
    for (rule, name) in [(&why.rule, "rule"), (&why.observed, "observed")] {
        let Some((rule, shown)) = rule.as_ref().zip(said.get_mut(name).and_then(Value::as_object_mut)) else {
            continue;
        };
        for (name, value) in parameters(&rule.all) {
            // `match` and `loader` are present already.
            shown.entry(name).or_insert_with(|| json(&value));
        }
    }
    said.to_string()
}

/// A value of a rule file in JSON. Strings, lists, numbers and flags are written alike in both.
fn json(value: &str) -> Value {
    let as_json = match value.strip_prefix("{ share = ") {
        Some(share) => format!("{{\"share\":{}}}", share.trim_end_matches(" }")),
        None => value.to_owned(),
    };
    serde_json::from_str(&as_json).unwrap_or_else(|_| Value::String(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn values_of_a_rule_file_in_json() {
        for (toml, expected) in [
            ("\"400ms\"", json!("400ms")),
            ("4", json!(4)),
            ("true", json!(true)),
            ("[\"page:{id}\", \"a\\\"b\"]", json!(["page:{id}", "a\"b"])),
            ("{ share = 0.1 }", json!({"share": 0.1})),
            ("\"a\\u0001\"", json!("a\u{1}")),
        ] {
            assert_eq!(super::json(toml), expected, "{toml}");
        }
    }
}
