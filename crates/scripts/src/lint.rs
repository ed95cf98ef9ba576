//! Mistakes that show in a source without running it: errors of Luau's compiler, and uses of unknown names.
//!
//! # Invariants
//! * An error is certainly a mistake, since it stops a reload; a possible mistake is a warning.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use crate::bytecode::{Bytecode, NameUse};
use crate::load;
use crate::problem::{Problem, Severity};
use crate::source::{SourceFile, Sources};

/// The most problems of a file.
const PROBLEMS_MAX: usize = 50;

/// The problems in sources, in the order of files and lines, at most 50 of each file. `globals`: names that
/// scripts may use; members of libraries have a dot: `string`, `string.rep`. Tests may also use `cg.test`.
pub fn lint(sources: &Sources, globals: &[&str]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let all = sources.types.iter().chain(&sources.libraries).map(|source| (source, false));
    for (source, is_test) in all.chain(sources.tests.iter().map(|source| (source, true))) {
        match load::describe(source) {
            Ok(bytecode) => problems.extend(check(&source.path, &bytecode, is_test, globals)),
            Err(problem) => problems.push(problem),
        }
        problems.extend(unused(sources, source));
    }
    problems
}

/// A warning about a library that no other source requires.
fn unused(sources: &Sources, library: &SourceFile) -> Option<Problem> {
    if sources.types.is_empty() || sources.libraries.iter().all(|one| one.path != library.path) {
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

/// Problems with the names in a file: the first ones in the order of lines.
fn check(file: &Path, bytecode: &Bytecode, is_test: bool, globals: &[&str]) -> Vec<Problem> {
    let all = || bytecode.functions.iter().flat_map(|function| &function.uses);
    let assigned: BTreeSet<&str> = all()
        .filter_map(|(_, one)| if let NameUse::Assigned(name) = one { Some(&**name) } else { None })
        .collect();
    let functions = bytecode.functions.iter().enumerate();
    let mut uses: Vec<(usize, &NameUse, usize)> = functions
        .flat_map(|(place, one)| one.uses.iter().map(move |(line, one)| (*line, one, place)))
        .collect();
    uses.sort_by_key(|(line, ..)| *line);
    let mut seen = HashSet::new();
    // The same upvalue is reported once for each function.
    uses.retain(|(line, one, place)| {
        seen.insert((*line, *one, if matches!(one, NameUse::Upvalue(..)) { *place } else { 0 }))
    });
    let problem = |(line, one, place): (usize, &NameUse, usize)| {
        let (severity, text) = match one {
            NameUse::Read(path) => {
                let root = path.split('.').next().unwrap_or_default();
                let text = if globals.contains(&root) {
                    unknown_member(path, is_test, globals)?
                } else if assigned.contains(root) {
                    // The assignment is reported already.
                    return None;
                } else {
                    unknown_global(root, &bytecode.locals(place), globals)
                };
                (Severity::Error, text)
            }
            NameUse::Assigned(name) => (
                Severity::Error,
                format!("{name} is a global, and globals cannot be assigned: write `local {name}`"),
            ),
            NameUse::Upvalue(number, name)
                if !is_test && bytecode.owner(place, *number) == Some(bytecode.main) =>
            {
                let name = if name.is_empty() { "a local" } else { name };
                let text = format!(
                    "{name} is kept outside of objects: each thread has its own, and it is lost at any time; \
                     keep it in the object"
                );
                (Severity::Warning, text)
            }
            NameUse::Upvalue(..) | NameUse::Return => return None,
        };
        Some(Problem { file: file.to_owned(), line: Some(line), severity, text })
    };
    let mut problems: Vec<Problem> = uses.into_iter().filter_map(problem).take(PROBLEMS_MAX).collect();
    problems.dedup();
    problems
}

fn unknown_global(name: &str, locals: &[&str], globals: &[&str]) -> String {
    let globals = globals.iter().filter(|name| !name.contains('.'));
    let others = locals.iter().chain(globals).copied().filter(|other| *other != name);
    let hint = nearest(name, others).map_or_else(
        || "define it before this line with `local`".to_owned(),
        |near| format!("did you mean {near}?"),
    );
    format!("unknown global {name}: {hint}")
}

/// The problem with an unknown member of a library, such as `string.trim`.
fn unknown_member(path: &str, is_test: bool, globals: &[&str]) -> Option<String> {
    let ends = path.match_indices('.').map(|(at, _)| at).skip(1).chain([path.len()]);
    for member in ends.map(|end| &path[..end]) {
        if globals.contains(&member) || (is_test && member.starts_with("cg.test")) {
            continue;
        }
        let (library, own) = member.rsplit_once('.')?;
        let prefix = format!("{library}.");
        let mut members = globals.iter().filter_map(|name| name.strip_prefix(&*prefix)).peekable();
        members.peek()?;
        let near = nearest(own, members).map(|near| format!(": did you mean {prefix}{near}?"));
        return Some(format!("there is no {member}{}", near.unwrap_or_default()));
    }
    None
}

/// The line in which a source defines a field with this name, such as `ttl` or `read.left`, otherwise the
/// field that contains it.
pub(crate) fn line_of_field(source: &SourceFile, field: &str) -> Option<usize> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let defines = |line: &str, name: &str| {
        let code = line.split("--").next().unwrap_or_default();
        code.match_indices(name).any(|(at, _)| {
            let (before, after) = (&code[..at], code[at + name.len()..].trim_start());
            let is_whole = !before.ends_with(is_part) && !code[at + name.len()..].starts_with(is_part);
            let is_assigned = after.starts_with('=') && !after.starts_with("==");
            let is_function = before.contains("function ") && after.starts_with(['(', '<']);
            let is_text = before.ends_with(['"', '\'']) && after.starts_with(['"', '\'']);
            is_whole && !before.trim_end().ends_with("local") && (is_assigned || is_function || is_text)
        })
    };
    let from = |start: usize, name: &str| {
        let found = source.text.lines().skip(start - 1).position(|line| defines(line, name));
        found.map(|place| start + place)
    };
    match field.split_once('.') {
        _ if field.is_empty() => None,
        None => from(1, field),
        Some((outer, inner)) => {
            let start = from(1, outer);
            from(1, field).or_else(|| start.and_then(|start| from(start, inner))).or(start)
        }
    }
}

/// The name with the fewest changes: one for a name of three characters, two for five or more.
fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.len().saturating_sub(1) / 2).min(2);
    let near = names.map(|other| (changes(name, other), other)).filter(|(changes, _)| *changes <= most);
    near.min().map(|(_, other)| other)
}

/// The number of characters to change, insert or remove to turn one name into the other, at most 3.
fn changes(one: &str, other: &str) -> usize {
    if one.len().abs_diff(other.len()) > 2 {
        return 3;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (place, byte) in one.bytes().enumerate() {
        let mut before = row[0];
        row[0] = place + 1;
        for (column, other) in other.bytes().enumerate() {
            let replaced = before + usize::from(byte != other);
            before = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(before + 1);
        }
    }
    row[other.len()].min(3)
}
