//! Links between the texts of the repository, as a forge shows them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use percent_encoding::percent_decode_str;
use regex::Regex;

/// A link of a page.
#[derive(Debug, PartialEq)]
pub(super) struct Link {
    /// The line of the page, from 1.
    pub(super) line: usize,
    /// The target as it is written.
    pub(super) target: String,
    /// The file that it leads to, from the root of the repository. None: to another site.
    pub(super) path: Option<PathBuf>,
    /// The heading, or nothing.
    pub(super) anchor: String,
}

/// The links of all tracked texts that lead nowhere: to no tracked file or folder, or to no heading.
pub(super) fn broken() -> Result<Vec<String>, String> {
    let root = Path::new(crate::root());
    let mut anchors: HashMap<PathBuf, Vec<String>> = HashMap::new();
    let mut broken = Vec::new();
    for page in super::files(root)?.into_iter().filter(|file| file.extension().is_some_and(|end| end == "md"))
    {
        if !root.join(&page).exists() {
            continue; // deleted, and not yet committed
        }
        for link in of(&page)? {
            let Some(path) = &link.path else { continue };
            let why = if !root.join(path).exists() {
                Some("there is no such file")
            } else if !link.anchor.is_empty() && path.extension().is_some_and(|end| end == "md") {
                if !anchors.contains_key(path) {
                    anchors.insert(path.clone(), headings(&super::read(&root.join(path))?));
                }
                (!anchors[path].contains(&link.anchor)).then_some("there is no such heading")
            } else {
                None
            };
            broken.extend(why.map(|why| format!("{}:{}: {}: {why}", page.display(), link.line, link.target)));
        }
    }
    Ok(broken)
}

/// The links of a page, given from the root of the repository.
pub(super) fn of(page: &Path) -> Result<Vec<Link>, String> {
    Ok(in_text(page, &super::read(&Path::new(crate::root()).join(page))?))
}

/// The links of a text that stands at `page`.
fn in_text(page: &Path, text: &str) -> Vec<Link> {
    let pattern =
        Regex::new(r#"\]\(<?([^)> ]+)>?(?: +"[^"]*")?\)|^\[[^\]]+\]: +([^ ]+)|(?:href|src)="([^"]+)""#)
            .expect("an expression");
    let elsewhere = Regex::new(r"^[a-z]+:").expect("an expression");
    let code = Regex::new(r"``[^`]+``|`[^`]*`").expect("an expression");
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let bare = code.replace_all(line, "");
        for found in pattern.captures_iter(&bare) {
            let target = found.iter().skip(1).flatten().next().expect("one of them").as_str().to_owned();
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let is_elsewhere = elsewhere.is_match(path);
            let path = match path {
                _ if is_elsewhere => None,
                "" => Some(page.to_owned()),
                path => Some(plain(&page.parent().unwrap_or(Path::new("")).join(decoded(path)))),
            };
            let anchor = decoded(anchor);
            links.push(Link { line: number, target: target.clone(), path, anchor });
        }
    }
    links
}

/// The lines outside of blocks of code, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence = None;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let bare = line.trim_start();
        let ticks = bare.len() - bare.trim_start_matches('`').len();
        match fence {
            None if ticks >= 3 => fence = Some(ticks),
            None => lines.push((number, line)),
            Some(open) if ticks >= open && bare.trim_end().len() == ticks => fence = None,
            Some(_) => {}
        }
    }
    lines
}

/// The anchors that forges make of the headings of a text.
fn headings(text: &str) -> Vec<String> {
    let heading = Regex::new(r"^#{1,6} (.*?)#*$").expect("an expression");
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    for (_, line) in prose(text) {
        let Some(found) = heading.captures(line) else { continue };
        let name = anchor(found[1].trim());
        let count = seen.entry(name.clone()).or_default();
        anchors.push(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    anchors
}

/// The anchor of a heading: letters, digits, `-` and `_` of its text in small letters, with `-` for blanks.
fn anchor(heading: &str) -> String {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("an expression");
    let kept = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    link.replace_all(heading, "$1")
        .to_lowercase()
        .chars()
        .filter(|c| kept(*c))
        .collect::<String>()
        .replace(' ', "-")
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// A text with its percent codes, such as `%20`, replaced.
pub(super) fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_the_repository_leads_somewhere() {
        let broken = broken().unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](b.md#c) `[x](y.md)` ![d](../e.svg)\n```text\n[x](y.md)\n```\n[f](#g) [h](https://i.example/j#k)\n";
        let links = in_text(Path::new("docs/page.md"), text);
        let found: Vec<_> =
            links.iter().map(|link| (link.line, link.path.as_deref(), link.anchor.as_str())).collect();
        assert_eq!(
            found,
            [
                (1, Some(Path::new("docs/b.md")), "c"),
                (1, Some(Path::new("e.svg")), ""),
                (5, Some(Path::new("docs/page.md")), "g"),
                (5, None, "k"),
            ]
        );
    }

    #[test]
    fn anchors_are_those_of_forges() {
        for (heading, expected) in [
            ("What is guaranteed", "what-is-guaranteed"),
            ("Memory, and false stale answers", "memory-and-false-stale-answers"),
            ("`[follow.NAME]` and more", "followname-and-more"),
            ("Commands of [a page](b.md)", "commands-of-a-page"),
            ("A_b-c", "a_b-c"),
        ] {
            assert_eq!(anchor(heading), expected);
        }
        assert_eq!(headings("# A\n```\n# B\n```\n## A\n"), ["a", "a-1"]);
    }

    #[test]
    fn texts_are_decoded() {
        assert_eq!(decoded("a%20b%2"), "a b%2");
    }
}
