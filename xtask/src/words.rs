//! `cargo xtask words`: the language of code, comments and documents, checked against `xtask/words.txt`.
//!
//! The list has regular expressions for phrases that are hard to read, each with what to write instead. All
//! tracked text is searched. A phrase may begin on one line and end on the next, so a file is searched with
//! its lines joined, without indentation and comment marks; line breaks remain around blank lines and where a
//! comment begins or ends. A phrase is reported at the line where it begins.
//!
//! # Invariants
//! * Every line of the list is a valid expression with an advice; any other fails the check.
//! * An exception ([`ALLOWED`]) that excepts nothing any more fails the check of the whole repository.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use regex::{Regex, RegexBuilder};

/// The list, from the root of the repository.
const LIST: &str = "xtask/words.txt";

/// Ends of the names of files that are checked.
const KINDS: &[&str] = &[".rs", ".md", ".py", ".toml", ".sh", ".js", ".pl"];

/// Phrases that are right where they stand: file, phrase in small letters.
const ALLOWED: &[(&str, &str)] = &[];

/// Checks all tracked text, or only what is under `paths` (files or folders, from the root of the
/// repository).
///
/// Prints each phrase with file, line and advice. An error says how many there are, or why nothing could be
/// checked.
pub(crate) fn check(paths: &[String]) -> Result<(), String> {
    let text = read(LIST)?;
    let list = PhraseList::parse(&text)?;
    let mut exceptions = Exceptions::new(ALLOWED);
    let mut out = std::io::stdout().lock();
    let mut phrases = 0;
    for file in tracked(paths)? {
        for found in list.search(&read(&file)?) {
            if exceptions.allow(&file, &found.phrase) {
                continue;
            }
            phrases += 1;
            writeln!(out, "{file}:{}: \"{}\"; write {}", found.line, found.phrase, found.advice)
                .map_err(|error| format!("standard output: {error}"))?;
        }
    }
    if phrases > 0 {
        return Err(format!("{phrases} phrases to write otherwise; {LIST} has the list"));
    }
    match exceptions.unused() {
        Some((file, phrase)) if paths.is_empty() => {
            Err(format!("xtask/src/words.rs: {file} has no \"{phrase}\" any more; remove the exception"))
        }
        _ => Ok(()),
    }
}

/// Phrases that are right where they stand, and which exceptions were met.
struct Exceptions {
    allowed: &'static [(&'static str, &'static str)],
    used: Vec<bool>,
}

impl Exceptions {
    fn new(allowed: &'static [(&'static str, &'static str)]) -> Self {
        Self { allowed, used: vec![false; allowed.len()] }
    }

    /// Whether `phrase` is right in `file`, in capitals or not.
    fn allow(&mut self, file: &str, phrase: &str) -> bool {
        let place =
            self.allowed.iter().position(|(path, right)| *path == file && *right == phrase.to_lowercase());
        if let Some(place) = place {
            self.used[place] = true;
        }
        place.is_some()
    }

    /// An exception that was not met.
    fn unused(&self) -> Option<&(&'static str, &'static str)> {
        self.allowed.iter().zip(&self.used).find(|(_, used)| !**used).map(|(exception, _)| exception)
    }
}

/// The phrases to avoid.
struct PhraseList<'a>(Vec<(Regex, &'a str)>);

/// A phrase of the list in a text.
#[derive(Debug, PartialEq)]
struct FoundPhrase<'a> {
    /// The line of the text, from 1.
    line: usize,
    /// The phrase as it stands there; line breaks are blanks.
    phrase: String,
    advice: &'a str,
}

impl<'a> PhraseList<'a> {
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
                .multi_line(true)
                .unicode(false)
                .build()
                .map_err(|error| format!("{LIST}:{number}: {error}"))?;
            entries.push((expression, advice));
        }
        Ok(Self(entries))
    }

    /// The phrases in `text`, by line.
    fn search(&self, text: &str) -> Vec<FoundPhrase<'a>> {
        let (flow, starts) = flow(text);
        let mut found: Vec<FoundPhrase<'_>> = Vec::new();
        for (expression, advice) in &self.0 {
            found.extend(expression.find_iter(&flow).map(|phrase| {
                let words = phrase.as_str().trim_start();
                let start = phrase.end() - words.len();
                FoundPhrase {
                    line: starts.partition_point(|line| *line <= start),
                    phrase: words.trim_end().to_owned(),
                    advice,
                }
            }));
        }
        found.sort_by_key(|found| found.line);
        found
    }
}

/// `text` with each paragraph and each comment on one line, and where each of its lines begins there.
fn flow(text: &str) -> (String, Vec<usize>) {
    let mut flow = String::with_capacity(text.len());
    let mut starts = Vec::new();
    let mut before = ("", "");
    for line in text.lines() {
        let (mark, bare) = bare(line);
        if !flow.is_empty() {
            let goes_on = mark == before.0 && !bare.is_empty() && !before.1.is_empty();
            flow.push(if goes_on { ' ' } else { '\n' });
        }
        starts.push(flow.len());
        flow.push_str(bare);
        before = (mark, bare);
    }
    (flow, starts)
}

/// The mark of a comment that a line begins with, or nothing; and the line without it, without indentation,
/// bullet or a backslash that continues a string.
fn bare(line: &str) -> (&str, &str) {
    let line = line.trim().trim_end_matches('\\').trim_end();
    let mark = ["//!", "///", "//", "#"].into_iter().find(|mark| line.starts_with(mark)).unwrap_or_default();
    let line = line[mark.len()..].trim_start_matches('#').trim_start();
    let line = line.strip_prefix("* ").or_else(|| line.strip_prefix("- ")).unwrap_or(line);
    (mark, line.trim_start())
}

/// The tracked files under `paths` that are checked and not deleted, from the root of the repository.
fn tracked(paths: &[String]) -> Result<Vec<String>, String> {
    // What is named is below the current directory.
    let folder = if paths.is_empty() { Path::new(crate::root()) } else { Path::new(".") };
    let output = Command::new("git")
        .args(["ls-files", "-z", "--full-name", "--"])
        .args(paths)
        .current_dir(folder)
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8(output.stdout).map_err(|error| format!("git ls-files: {error}"))?;
    let files: Vec<String> = names
        .split_terminator('\0')
        .filter(|name| KINDS.iter().any(|kind| name.ends_with(kind)))
        .filter(|name| Path::new(crate::root()).join(name).exists())
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
        let list = PhraseList::parse(FRUIT).unwrap();
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
        for text in ["a green\n\napple", "// a green\nlet apple = 1;", "/// a green\n// apple"] {
            assert_eq!(search(text), [], "{text:?}");
        }
    }

    #[test]
    fn an_expression_can_ask_for_the_beginning_of_a_comment_or_paragraph() {
        assert_eq!(search("let a;\n    // Kiwi\n    // kiwi\na kiwi\n"), [(2, "Kiwi".into(), "melon")]);
    }

    #[test]
    fn an_exception_holds_for_its_file_and_phrase_and_is_missed_when_unused() {
        let mut exceptions = Exceptions::new(&[("a.rs", "green apple"), ("a.rs", "kiwi")]);
        assert!(exceptions.allow("a.rs", "Green apple"));
        assert!(!exceptions.allow("b.rs", "green apple"));
        assert!(!exceptions.allow("a.rs", "green pear"));
        assert_eq!(exceptions.unused(), Some(&("a.rs", "kiwi")));
        assert!(exceptions.allow("a.rs", "kiwi"));
        assert_eq!(exceptions.unused(), None);
    }

    #[test]
    fn a_line_of_the_list_that_is_not_understood_is_named() {
        for (line, reason) in [
            ("apple", "not an expression"),
            ("apple\t", "not an expression"),
            ("\tpear", "not an expression"),
            ("(\tpear", "unclosed group"),
        ] {
            let error = PhraseList::parse(&format!("# fruit\n{line}\n")).err().unwrap();
            assert!(error.starts_with("xtask/words.txt:2: ") && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn the_list_itself_is_valid_and_finds_what_it_names() {
        let text = read(LIST).unwrap();
        let list = PhraseList::parse(&text).unwrap();
        // In two parts, so that the check does not find them here.
        for phrase in
            [concat!("who", "ever asks"), concat!("in ", "vain"), concat!("so ", "many milliseconds")]
        {
            assert_eq!(list.search(phrase).len(), 1, "{phrase}");
        }
        assert_eq!(list.search("Any client that asks waits for this many milliseconds."), []);
    }
}
