//! Mistakes that can be seen in a source without running it.
//!
//! ```text
//!   text ──▶ Luau's compiler: syntax errors
//!     └─ token ──▶ parse ──▶ tree ──▶ names: globals, counts of arguments, state outside of objects
//!                               └───▶ tables: `#` on tables that are no lists
//! ```
//! # Invariants
//! * An error is a mistake for certain, as it stops a reload; what may be meant is a warning.
//! * A text that is nested too deeply does not reach the compiler.
//! * A text that Luau accepts and the reader here does not is a warning, and nothing more is said about it.

mod names;
mod parameters;
mod parse;
mod signatures;
mod tables;
pub(crate) mod token;
mod tree;

use std::path::Path;

pub(crate) use parameters::lines;
pub use parameters::{Parameter, Parameters, parameters};

use crate::load;
use crate::problem::{Problem, Severity};
use crate::source::{Source, Sources};

/// Most problems of a file.
const PROBLEMS_MAX: usize = 50;

/// What is wrong with sources, in the order of files and lines, at most 50 of each file. `globals`: names that a script may
/// use, members of libraries with a dot: `string`, `string.rep`. Tests may use `cg.test` too.
pub fn lint(sources: &Sources, globals: &[&str]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let lists =
        [(&sources.types, Role::Type), (&sources.libraries, Role::Library), (&sources.tests, Role::Test)];
    for (list, role) in lists {
        for source in list {
            let mut found = one(source, role, globals);
            found.sort_by_key(|problem| problem.line);
            found.dedup();
            found.truncate(PROBLEMS_MAX);
            problems.append(&mut found);
            problems.extend(unused(sources, source).filter(|_| role == Role::Library));
        }
    }
    problems
}

/// A library of types that no other source names.
fn unused(sources: &Sources, library: &Source) -> Option<Problem> {
    if sources.types.is_empty() {
        return None;
    }
    let names = ['"', '\'', '`'].map(|quote| format!("{quote}{}{quote}", library.name));
    let mut others = sources.types.iter().chain(&sources.libraries).chain(&sources.tests);
    let is_named =
        others.any(|other| other.path != library.path && names.iter().any(|name| other.text.contains(name)));
    (!is_named).then(|| Problem {
        file: library.path.clone(),
        line: None,
        severity: Severity::Warning,
        text: format!(
            "is a library, since it is in a folder, and no source has require(\"{}\"): a type is a file of the directory itself",
            library.name
        ),
    })
}

/// What a source is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Type,
    Library,
    Test,
}

fn one(source: &Source, role: Role, globals: &[&str]) -> Vec<Problem> {
    let mut found = Found { file: &source.path, problems: Vec::new() };
    let parsed = parse::parse(&source.text);
    if let Err(parse::Unread::TooDeep(line)) = parsed {
        found.error(line, "nested too deeply, or too many operators in a row: divide it".to_owned());
        return found.problems;
    }
    if let Err(problem) = load::compile(source) {
        return vec![problem];
    }
    match parsed {
        Err(parse::Unread::Unknown(line) | parse::Unread::TooDeep(line)) => {
            found.warning(line, "lint does not read this syntax: names were not checked".to_owned());
        }
        Ok(block) => names::check(&block, role, globals, &mut found),
    }
    found.problems
}

/// Problems of a file.
#[derive(Debug)]
struct Found<'f> {
    file: &'f Path,
    problems: Vec<Problem>,
}

impl Found<'_> {
    fn error(&mut self, line: usize, text: String) {
        self.push(line, Severity::Error, text);
    }

    fn warning(&mut self, line: usize, text: String) {
        self.push(line, Severity::Warning, text);
    }

    /// There are more than are shown.
    fn is_full(&self) -> bool {
        self.problems.len() > 4 * PROBLEMS_MAX
    }

    fn push(&mut self, line: usize, severity: Severity, text: String) {
        self.problems.push(Problem { file: self.file.to_owned(), line: Some(line), severity, text });
    }
}
