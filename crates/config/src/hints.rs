//! Hints on probable mistakes: wildcards of other programs in patterns, and files in other formats.

use cattlegrid_engine::rules::Pattern;

/// A line for each part of a pattern that is a wildcard in other programs, and literal here.
pub(crate) fn of_pattern(pattern: &Pattern) -> Vec<&'static str> {
    let literal = literal(pattern.text());
    let mut hints = Vec::new();
    if literal.contains('*') {
        hints.push(
            "* stands for itself, there are no wildcards; write a capture: {name} for a part up to what follows it, {name*} for the rest",
        );
    }
    if literal.starts_with('^') || literal.ends_with('$') {
        hints.push("^ and $ stand for themselves; a pattern is always that of the whole key");
    }
    let has_set = literal.split_once('[').is_some_and(|(_, rest)| rest.contains(']'));
    if has_set || ["\\d", "\\w", ".+", "(?", "%d", "%s"].iter().any(|piece| literal.contains(piece)) {
        hints.push(
            "[0-9], \\d, .+ and the like stand for themselves; write a capture: {name:int} for digits, {name} for any part",
        );
    }
    hints
}

/// The text, in which each capture is replaced by a byte that keys cannot have.
fn literal(text: &str) -> String {
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        literal.push_str(&rest[..at]);
        rest = if let Some(doubled) = rest[at + 1..].strip_prefix('{') {
            doubled
        } else {
            literal.push(' ');
            rest[at..].split_once('}').map_or("", |(_, after)| after)
        };
    }
    literal + rest
}

/// The format that a text which is not TOML seems to have.
pub(crate) fn other_format(text: &str) -> Option<&'static str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next()?;
    let second = lines.next().unwrap_or_default();
    let list_of_json =
        first.strip_prefix('[').map(|rest| if rest.is_empty() { second } else { rest.trim_start() });
    if first.starts_with('{') || list_of_json.is_some_and(|rest| rest.starts_with('{')) {
        return Some("JSON");
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '"' | '\'');
    let is_mapping = |line: &str| {
        let key = line.split_once(':').filter(|(_, after)| after.is_empty() || after.starts_with(' '));
        key.is_some_and(|(key, _)| !key.is_empty() && key.chars().all(is_word))
    };
    let is_yaml =
        first == "---" || first.starts_with("%YAML") || first.starts_with("- ") || is_mapping(first);
    is_yaml.then_some("YAML")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_other_programs_are_noticed() {
        let begins = |text: &str| {
            let hints = of_pattern(&Pattern::parse(text).unwrap());
            hints.iter().map(|hint| hint.split(' ').next().unwrap()).collect::<Vec<_>>()
        };
        for (text, expected) in [
            ("page:*", &["*"][..]),
            ("*:page", &["*"]),
            ("page:{id}:*", &["*"]),
            ("^page:{id}", &["^"]),
            ("page:{id}$", &["^"]),
            ("^page:.*$", &["*", "^"]),
            ("page:[0-9]+", &["[0-9],"]),
            ("page:\\d+", &["[0-9],"]),
            ("page:.+", &["[0-9],"]),
            ("page:%d", &["[0-9],"]),
            ("page:{id}", &[]),
            ("page:{rest*}", &[]),
            ("page:{id:int}", &[]),
            ("{{page}}:{id*}", &[]),
            ("a^b$c?d", &[]),
            ("price:100%", &[]),
        ] {
            assert_eq!(begins(text), expected, "{text}");
        }
    }

    #[test]
    fn formats_that_are_no_toml() {
        for (text, expected) in [
            ("---\nrule:\n", Some("YAML")),
            ("# rules\n\nrule:\n  - match: page\n", Some("YAML")),
            ("rules: []\n", Some("YAML")),
            ("- match: page\n", Some("YAML")),
            ("{\"rule\": []}", Some("JSON")),
            ("\n  {\n  \"rule\": []\n}", Some("JSON")),
            ("[\n  {\"match\": 1}\n]", Some("JSON")),
            ("[{}]", Some("JSON")),
            ("[[rule]\nmatch = 1", None),
            ("[server\n", None),
            ("match = \"a:b\" c\n", None),
            ("http://x\n", None),
            ("", None),
        ] {
            assert_eq!(other_format(text), expected, "{text}");
        }
    }
}
