//! Built with scripts: the crate `cattlegrid-scripts` does the work.

use std::path::Path;
use std::sync::Arc;

use cattlegrid_objects::{Host, Settings as Registered};
use cattlegrid_scripts::{Limits, Problem, Scripts, Severity, run_tests};

use super::{Finding, Findings, ScriptLimits, Tested};

/// Files of a directory, and what they became.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    read: cattlegrid_scripts::Sources,
    scripts: Arc<Scripts>,
}

type Loaded = (Arc<dyn Host>, Sources, Vec<String>);

pub(super) fn load(dir: &Path, limits: ScriptLimits) -> Result<Option<Loaded>, Vec<String>> {
    let read = cattlegrid_scripts::Sources::read(dir).map_err(|problems: Vec<Problem>| lines(&problems))?;
    if read.types.is_empty() && read.libraries.is_empty() && read.tests.is_empty() {
        return Ok(None);
    }
    let with_hint = |problems: &[Problem]| no_types(dir, &read).into_iter().chain(lines(problems)).collect();
    let (scripts, warnings) = match Scripts::load(&read, &of_crate(limits)) {
        Ok((scripts, warnings)) => (scripts, with_hint(&warnings)),
        Err(problems) => return Err(with_hint(&problems)),
    };
    let host: Arc<dyn Host> = scripts.clone();
    if let (Some(hint), false) = (no_types(dir, &read), read.tests.is_empty()) {
        // Its tests would fail, each for the type that is missing.
        return Err(vec![hint]);
    }
    Ok(Some((host, Sources { read, scripts }, warnings)))
}

/// What a directory lacks that has sources in folders only.
fn no_types(dir: &Path, read: &cattlegrid_scripts::Sources) -> Option<String> {
    let first = read.libraries.first().filter(|_| read.types.is_empty())?;
    Some(format!(
        "{}: has no types: sources in its folders, such as {}, are for require; name the folder that has the types",
        dir.display(),
        first.path.display()
    ))
}

impl Sources {
    /// The names of the libraries, as they are required.
    pub(super) fn libraries(&self) -> Vec<String> {
        self.read.libraries.iter().map(|library| library.name.clone()).collect()
    }
}

pub(super) fn test(sources: &Sources, settings: &Registered) -> Tested {
    match run_tests(&sources.scripts, &sources.read, settings) {
        Ok(passed) => {
            let passed = passed.into_iter().map(|test| (test.name, test.checks)).collect();
            Tested { passed, ..Tested::default() }
        }
        Err(problems) => Tested { failed: lines(&problems), ..Tested::default() },
    }
}

pub(super) fn keep_tests(sources: &mut Sources, file: &Path) {
    sources.read.tests.retain(|test| test.path == file);
}

#[expect(clippy::unnecessary_wraps, reason = "as without scripts")]
pub(super) fn lint(dir: &Path) -> Result<Findings, String> {
    let findings = |problems: Vec<Problem>, files| {
        let finding = |problem: Problem| Finding {
            line: problem.to_string(),
            is_error: problem.severity == Severity::Error,
            file: problem.file,
        };
        Findings { list: problems.into_iter().map(finding).collect(), files, ..Findings::default() }
    };
    let read = match cattlegrid_scripts::Sources::read(dir) {
        Ok(read) => read,
        Err(problems) => {
            let files = problems.iter().map(|problem| problem.file.clone()).collect();
            return Ok(findings(problems, files));
        }
    };
    let all = read.types.iter().chain(&read.libraries).chain(&read.tests);
    let files = all.map(|source| source.path.clone()).collect();
    let problems = match Scripts::load(&read, &Limits::default()) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    };
    let (types, libraries) = (read.types.len(), read.libraries.len());
    Ok(Findings { types, libraries, ..findings(problems, files) })
}

fn of_crate(limits: ScriptLimits) -> Limits {
    Limits { time: limits.time, memory_bytes: limits.memory_bytes, state_max: limits.state_max }
}

fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}
