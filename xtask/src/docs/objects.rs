//! The tables and examples of `docs/objects.md`: the rest of the page is written by hand.
//!
//! What stands between `<!-- generated: NAME -->` and `<!-- end -->` is replaced. NAME is `types`, a type, or
//! `every object`. Tables come from the registry of the server, examples from the transcripts in
//! `examples/objects`, which the tests run.

use cattlegrid_objects::{Method, ObjectType, native};

/// The page.
pub(super) const PAGE: &str = "docs/objects.md";
/// Column of the replies in examples.
const REPLIES: usize = 48;

/// The page with its generated parts made anew.
///
/// # Errors
/// A part has no place, or a type no transcript.
pub(super) fn page(current: &str) -> Result<String, String> {
    let mut text = replace(current, "types", &types())?;
    for one in native::TYPES {
        let transcript = super::read(&format!("examples/objects/type-{}.memc", one.name))?;
        let part = format!("{}\n{}", methods(one.name, one.methods), example(&transcript));
        text = replace(&text, one.name, &part)?;
    }
    replace(&text, "every object", &methods("TYPE", native::RESERVED))
}

/// The text with another part of this name.
fn replace(text: &str, name: &str, part: &str) -> Result<String, String> {
    let begin = format!("<!-- generated: {name} -->\n");
    let missing = || format!("{PAGE} has no place for {name}: {}, then <!-- end -->", begin.trim_end());
    let (before, rest) = text.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once("<!-- end -->").ok_or_else(missing)?;
    Ok(format!("{before}{begin}{part}<!-- end -->{after}"))
}

/// All types, a line each.
fn types() -> String {
    let line = |one: &&ObjectType| format!("| [`{0}`](#{0}) | {1} |\n", one.name, one.doc);
    let lines: Vec<String> = native::TYPES.iter().map(line).collect();
    format!("| type | what it is |\n|---|---|\n{}", lines.concat())
}

/// Methods, a line each. A method that differs from the one before only in capitals is another spelling of
/// it.
fn methods(type_name: &str, methods: &[Method]) -> String {
    let mut lines = vec!["| call | replies |\n|---|---|\n".to_owned()];
    let mut before = "";
    for method in methods {
        if !method.name.eq_ignore_ascii_case(before) {
            let (form, replies) = (method.form(type_name), method.replies);
            lines.push(format!("| `{}` | {} |\n", form.replace('|', "\\|"), replies.replace('|', "\\|")));
        }
        before = method.name;
    }
    lines.concat()
}

/// A transcript with the data of each reply beside its request.
fn example(transcript: &str) -> String {
    let mut text = vec!["```text\n".to_owned()];
    let mut lines = transcript.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with("get ") {
            text.push(format!("{line}\n"));
            continue;
        }
        let has_value = lines.next_if(|line| line.starts_with("VALUE ")).is_some();
        let mut data: Vec<&str> = lines.by_ref().take_while(|line| *line != "END").collect();
        data.retain(|line| !line.is_empty());
        if !has_value {
            data = vec!["(a miss)"];
        } else if data.is_empty() {
            data = vec!["(empty)"];
        }
        let mut left = line;
        if line.len() > REPLIES {
            text.push(format!("{line}\n"));
            left = "";
        }
        for reply in data {
            text.push(format!("{left:<REPLIES$} {reply}\n"));
            left = "";
        }
    }
    text.push("```\n".to_owned());
    text.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_and_nothing_else() {
        let page = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n<!-- generated: y -->\n<!-- end -->\n";
        let expected = page.replace("old", "new");
        assert_eq!(replace(page, "x", "new\n"), Ok(expected));
        assert!(replace(page, "z", "new\n").unwrap_err().contains("no place for z"));
    }

    #[test]
    fn an_example_has_replies_beside_requests() {
        let long = format!("get {}", "x".repeat(REPLIES));
        let transcript = format!("-- c\nget a\nVALUE a 0 6\nb\nc\n\nEND\n+ 1s\n{long}\nEND\n");
        let pad = |request: &str, reply: &str| format!("{request:<REPLIES$} {reply}\n");
        let (first, second, miss) = (pad("get a", "b"), pad("", "c"), pad("", "(a miss)"));
        assert_eq!(example(&transcript), format!("```text\n-- c\n{first}{second}+ 1s\n{long}\n{miss}```\n"));
    }
}
