//! `cattlegrid objects lint`: what is wrong with sources of types, and what `luau-analyze` says of their types.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use cattlegrid_config::UsageError;

use crate::own_types::{self, SourceReport};

use super::{Report, counted, directories, is_test};

/// The program that checks types of Luau.
const ANALYZER: &str = "luau-analyze";

/// Checks all that the paths name; a line for each problem. It is not good if any is an error.
///
/// # Errors
/// Files cannot be read.
pub(super) fn lint(paths: &[PathBuf]) -> Result<Report, UsageError> {
    let mut all = SourceReport::default();
    for path in &paths.iter().flat_map(|path| directories(path)).collect::<Vec<_>>() {
        let found = own_types::lint(path).map_err(UsageError::new)?;
        if found.files.is_empty() {
            return Err(UsageError::new(format!("{}: has no sources: *.luau or *.lua", path.display())));
        }
        all.list.extend(found.list);
        all.files.extend(found.files);
        all.types += found.types;
        all.libraries += found.libraries;
    }
    let mut is_good = !all.list.iter().any(|finding| finding.is_error);
    let line = |(text, is_error): (&str, bool)| {
        let (place, text) = split_place(text);
        format!("{place}{}{text}\n", if is_error { "" } else { "warning: " })
    };
    let mut text: String = all.list.iter().map(|finding| line((&finding.line, finding.is_error))).collect();
    let analyzed = analyze(OsStr::new(ANALYZER), &all.files);
    is_good &= analyzed.is_good;
    text.push_str(&analyzed.text);
    let errors = all.list.iter().filter(|finding| finding.is_error).count();
    let (files, warnings) = (all.files.len(), all.list.len() - errors);
    let counts =
        [counted(files, "file") + &parts(&all), counted(errors, "error"), counted(warnings, "warning")];
    text.push_str(&counts.join(", "));
    text.push('\n');
    if all.files.iter().any(|file| is_test(file)) {
        text.push_str("tests were not run: cattlegrid objects test runs them\n");
    }
    Ok(Report { text, is_good })
}

/// What the files were taken for; nothing of a single file.
fn parts(all: &SourceReport) -> String {
    let (types, libraries) = (all.types, all.libraries);
    if types + libraries == 0 {
        return String::new();
    }
    let tests = all.files.len() - types - libraries;
    format!(" ({}, {libraries} for require, {tests} of tests)", counted(types, "type"))
}

/// The place of a line `FILE:LINE: TEXT`, with its blank, and the text.
fn split_place(line: &str) -> (&str, &str) {
    line.find(": ").map_or(("", line), |at| line.split_at(at + 2))
}

/// What the program says of the types; a line that it is missing is good.
fn analyze(program: &OsStr, files: &[PathBuf]) -> Report {
    let name = program.to_string_lossy();
    let output = match Command::new(program).arg("--formatter=plain").args(files).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = format!("{name} is not installed: the types of variables were not checked\n");
            return Report { text, is_good: true };
        }
        Err(error) => {
            let text = format!("{name} cannot be run ({error}): the types of variables were not checked\n");
            return Report { text, is_good: false };
        }
    };
    let said = [output.stdout, output.stderr].concat();
    judge(&String::from_utf8_lossy(&said), output.status.success())
}

/// What of its lines counts. It does not know what a server gives to scripts.
fn judge(said: &str, has_succeeded: bool) -> Report {
    let (known, lines): (Vec<&str>, Vec<&str>) =
        said.lines().partition(|line| line.contains("Unknown global 'cg'"));
    let is_good = has_succeeded || (lines.is_empty() && !known.is_empty());
    Report { text: lines.iter().flat_map(|line| [*line, "\n"]).collect(), is_good }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_where_the_program_is_installed() {
        let files = ["a.luau".into(), "b.luau".into()];
        let run = |program: &str| {
            let Report { text, is_good } = analyze(OsStr::new(program), &files);
            (text, is_good)
        };
        assert_eq!(run("echo"), ("--formatter=plain a.luau b.luau\n".to_owned(), true));
        assert_eq!(run("false"), (String::new(), false));
        let missing = "no-such-analyzer is not installed: the types of variables were not checked\n";
        assert_eq!(run("no-such-analyzer"), (missing.to_owned(), true));
    }

    #[test]
    fn what_a_server_gives_to_scripts_is_known() {
        let known = "a.luau:1:1-2: (W0) TypeError: Unknown global 'cg'\n";
        let other = "a.luau:2:1-2: (W0) TypeError: x\n";
        for (said, has_succeeded, text, is_good) in [
            ("", true, "", true),
            (known, false, "", true),
            (other, false, other, false),
            (&[known, other].concat(), false, other, false),
            ("", false, "", false),
        ] {
            let report = judge(said, has_succeeded);
            assert_eq!((report.text.as_str(), report.is_good), (text, is_good), "{said}");
        }
    }
}
