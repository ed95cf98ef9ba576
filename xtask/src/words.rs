//! `cargo xtask words`: the language of code, comments and documents, checked against `xtask/words.txt`.
//!
//! The list has regular expressions for phrases that are hard to read, each with what to write instead. All tracked
//! text is searched, line by line. Text wraps, so a phrase may begin on one line and end on the next: each line is
//! searched together with the line after it, both without indentation and comment marks, and a phrase belongs to the
//! line where it begins.
//!
//! # Invariants
//! * Every line of the list is a valid expression with an advice; any other fails the check.
//! * An exception ([`ALLOWED`]) that excepts nothing any more fails the check of the whole repository.

use std::io::Write as _;
use std::process::Command;

use regex::{Regex, RegexBuilder};

/// The list, from the root of the repository.
const LIST: &str = "xtask/words.txt";

/// Ends of the names of files that are checked.
const KINDS: &[&str] = &[".rs", ".md", ".py", ".toml", ".sh", ".js", ".pl"];

/// Phrases that are right where they stand: file, phrase in small letters.
const ALLOWED: &[(&str, &str)] = &[];

/// Checks all tracked text, or only what is under `paths` (files or folders, from the root of the repository).
///
/// Prints each phrase with file, line and advice. An error says how many there are, or why nothing could be checked.
pub(crate) fn check(paths: &[&str]) -> Result<(), String> {
    let text = read(LIST)?;
    let list = List::parse(&text)?;
    let mut out = std::io::stdout().lock();
    let mut phrases = 0;
    let mut used = vec![false; ALLOWED.len()];
    for file in tracked(paths)? {
        for found in list.search(&read(&file)?) {
            let exception = ALLOWED
                .iter()
                .position(|(path, phrase)| *path == file && *phrase == found.phrase.to_lowercase());
            if let Some(n) = exception {
                used[n] = true;
                continue;
            }
            phrases += 1;
            writeln!(out, "{file}:{}: \"{}\"; write {}", found.line, found.phrase, found.advice)
                .map_err(|error| format!("standard output: {error}"))?;
        }
    }
    let unused = ALLOWED.iter().zip(used).find(|(_, used)| paths.is_empty() && !used);
    match (phrases, unused) {
        (0, None) => Ok(()),
        (0, Some(((file, phrase), _))) => {
            Err(format!("xtask/src/words.rs: {file} has no \"{phrase}\" any more; remove the exception"))
        }
        _ => Err(format!("{phrases} phrases to write otherwise; {LIST} has the list")),
    }
}

/// The phrases to avoid.
struct List<'a>(Vec<(Regex, &'a str)>);

/// A phrase of the list in a text.
#[derive(Debug, PartialEq)]
struct Found<'a> {
    /// Of the text, from 1.
    line: usize,
    /// As it stands there; line breaks are blanks.
    phrase: String,
    advice: &'a str,
}

impl<'a> List<'a> {
    /// The list in `text`. An error names the line that is neither a comment nor expression, tab and advice.
    fn parse(text: &'a str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for (line, number) in
            text.lines().zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
        {
            let (expression, advice) = line
                .split_once('\t')
                .filter(|(expression, advice)| !expression.is_empty() && !advice.is_empty())
                .ok_or_else(|| format!("{LIST}:{number}: not an expression, a tab and an advice"))?;
            let expression = RegexBuilder::new(expression)
                .case_insensitive(true)
                .build()
                .map_err(|error| format!("{LIST}:{number}: {error}"))?;
            entries.push((expression, advice));
        }
        Ok(Self(entries))
    }

    /// The phrases in `text`, by line.
    fn search(&self, text: &str) -> Vec<Found<'a>> {
        let lines: Vec<&str> = text.lines().map(bare).collect();
        let mut found = Vec::new();
        for (n, line) in lines.iter().enumerate() {
            let next = lines.get(n + 1).copied().unwrap_or_default();
            let both = format!("{line} {next}");
            for (expression, advice) in &self.0 {
                let here = expression.find_iter(&both).filter(|phrase| phrase.start() < line.len());
                found.extend(here.map(|phrase| Found {
                    line: n + 1,
                    phrase: phrase.as_str().trim().to_owned(),
                    advice,
                }));
            }
        }
        found
    }
}

/// A line without indentation, marks of a comment or heading, and a backslash that continues a string.
fn bare(line: &str) -> &str {
    let line = line.trim().trim_end_matches('\\').trim_end();
    let marks = ["//!", "///", "//", "* ", "- "];
    let line = marks.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line);
    line.trim_start_matches('#').trim_start()
}

/// The tracked files under `paths` that are checked, from the root of the repository.
fn tracked(paths: &[&str]) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--"])
        .args(paths)
        .current_dir(crate::root())
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8(output.stdout).map_err(|error| format!("git ls-files: {error}"))?;
    let files: Vec<String> = names
        .split_terminator('\0')
        .filter(|name| KINDS.iter().any(|kind| name.ends_with(kind)))
        .map(str::to_owned)
        .collect();
    if files.is_empty() {
        return Err(format!(
            "no tracked text under {}",
            if paths.is_empty() { "the root".into() } else { paths.join(" ") }
        ));
    }
    Ok(files)
}

/// The text of a file of the repository.
fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(format!("{}/{path}", crate::root())).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRUIT: &str = "# fruit\n\n\\bgreen (apple|pear)s?\\b\tred $1\n^kiwi\tmelon\n";

    fn search(text: &str) -> Vec<(usize, String, &'static str)> {
        let list = List::parse(FRUIT).unwrap();
        list.search(text).into_iter().map(|found| (found.line, found.phrase, found.advice)).collect()
    }

    #[test]
    fn phrases_are_found_with_their_line_and_advice() {
        let found = search("a red apple\nGreen apples, a green pear\nevergreen apple\n");
        assert_eq!(found, [(2, "Green apples".into(), "red $1"), (2, "green pear".into(), "red $1")]);
    }

    #[test]
    fn a_phrase_may_wrap_in_comments_lists_and_strings() {
        for text in [
            "//! a green\n//! apple\n",
            "    /// a green\n    /// apple\n",
            "# a green\n# apple\n",
            "* a green\n  apple\n",
            "\"a green \\\n    apple\"",
        ] {
            assert_eq!(search(text), [(1, "green apple".into(), "red $1")], "{text:?}");
        }
        assert_eq!(search("a green\n\napple"), [], "two paragraphs");
    }

    #[test]
    fn an_expression_can_ask_for_the_beginning_of_a_comment() {
        assert_eq!(search("    // Kiwi\na kiwi\n"), [(1, "Kiwi".into(), "melon")]);
    }

    #[test]
    fn a_line_of_the_list_that_is_not_understood_is_named() {
        for (line, reason) in [
            ("apple", "not an expression"),
            ("apple\t", "not an expression"),
            ("\tpear", "not an expression"),
            ("(\tpear", "unclosed group"),
        ] {
            let error = List::parse(&format!("# fruit\n{line}\n")).err().unwrap();
            assert!(error.starts_with("xtask/words.txt:2: ") && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn the_list_itself_is_valid_and_finds_what_it_names() {
        let text = read(LIST).unwrap();
        let list = List::parse(&text).unwrap();
        // In two parts, so that the check does not find them here.
        for phrase in
            [concat!("who", "ever asks"), concat!("in ", "vain"), concat!("so ", "many milliseconds")]
        {
            assert_eq!(list.search(phrase).len(), 1, "{phrase}");
        }
        assert_eq!(list.search("Any client that asks waits for this many milliseconds."), []);
    }
}
