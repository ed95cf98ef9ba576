//! Built with scripts: the crate `cattlegrid-scripts` does the work.
//!
//! # Invariants
//! * Sources run on a thread of their own, which has ended when they are loaded: nothing of theirs stays in
//!   the caller's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cattlegrid_config::{OwnTypes, ScriptLimits, TypeLoader, TypeTests};
use cattlegrid_objects::{Host as _, Settings};
use cattlegrid_scripts::{Limits, Problem, Scripts, Severity, Sources, TestServer, run_tests};

use super::{SourceProblem, SourceReport, TestReport, TestSettings};
use crate::objects::EngineServer;

/// Loads types in Luau.
pub(crate) const TYPES: &dyn TypeLoader = &Luau { tested: true };
/// The same, whose types have no tests.
pub(crate) const UNTESTED: &dyn TypeLoader = &Luau { tested: false };

#[derive(Debug)]
struct Luau {
    tested: bool,
}

impl TypeLoader for Luau {
    fn load(&self, dir: &Path, limits: ScriptLimits) -> Result<Option<OwnTypes>, Vec<String>> {
        let Some((mut loaded, warnings)) = apart(|| load(dir, limits))? else { return Ok(None) };
        if !self.tested {
            loaded.sources.tests.clear();
        }
        Ok(Some(OwnTypes {
            host: loaded.scripts.clone(),
            libraries: loaded.libraries(),
            warnings,
            tests: Arc::new(loaded),
        }))
    }
}

/// The sources of a directory, and what they became.
#[derive(Debug)]
struct LoadedTypes {
    sources: Sources,
    scripts: Arc<Scripts>,
}

impl TypeTests for LoadedTypes {
    fn run(&self, settings: &Settings, control: &str) -> Result<(), Vec<String>> {
        apart(|| self.run_tests(settings, control).map(|_| ()))
    }
}

impl LoadedTypes {
    /// The names of the libraries, as they are required.
    fn libraries(&self) -> Vec<String> {
        self.sources.libraries.iter().map(|library| library.name.clone()).collect()
    }

    /// The name of each test that has passed, and how much it has compared.
    fn run_tests(&self, settings: &Settings, control: &str) -> Result<Vec<(String, usize)>, Vec<String>> {
        let start = |unix_ms| {
            let server = EngineServer::start(&self.scripts, settings, control, unix_ms)?;
            Ok(Box::new(server) as Box<dyn TestServer>)
        };
        match run_tests(&self.scripts, &self.sources, &settings.timezone, &start) {
            Ok(passed) => Ok(passed.into_iter().map(|test| (test.name, test.checks)).collect()),
            Err(problems) => Err(lines(&problems)),
        }
    }
}

/// The types of a directory, and a line for each thing that is probably a mistake.
fn load(dir: &Path, limits: ScriptLimits) -> Result<Option<(LoadedTypes, Vec<String>)>, Vec<String>> {
    let sources = Sources::read(dir).map_err(|problems: Vec<Problem>| lines(&problems))?;
    if sources.types.is_empty() && sources.libraries.is_empty() && sources.tests.is_empty() {
        return Ok(None);
    }
    let with_hint =
        |problems: &[Problem]| no_types(dir, &sources).into_iter().chain(lines(problems)).collect();
    let ScriptLimits { time, memory_bytes, state_max } = limits;
    let (scripts, warnings) = match Scripts::load(&sources, &Limits { time, memory_bytes, state_max }) {
        Ok((scripts, warnings)) => (scripts, with_hint(&warnings)),
        Err(problems) => return Err(with_hint(&problems)),
    };
    if let (Some(hint), false) = (no_types(dir, &sources), sources.tests.is_empty()) {
        // Its tests would fail, each for the type that is missing.
        return Err(vec![hint]);
    }
    Ok(Some((LoadedTypes { sources, scripts }, warnings)))
}

/// The reason why `dir` has no types although its folders have sources; None: it has some.
fn no_types(dir: &Path, sources: &Sources) -> Option<String> {
    let first = sources.libraries.first().filter(|_| sources.types.is_empty())?;
    Some(format!(
        "{}: has no types: sources in its folders, such as {}, are for require; name the folder that has the types",
        dir.display(),
        first.path.display()
    ))
}

/// Checks the sources of a directory, or one of them among the others of its directory.
///
/// # Errors
/// They cannot be read.
pub(crate) fn lint(path: &Path) -> Result<SourceReport, String> {
    let (dir, file) = place(path)?;
    match file {
        Some(file) => lint_file(&dir, file),
        None => Ok(lint_dir(&dir)),
    }
}

/// Checks one source, whatever is wrong with others that cannot be read.
fn lint_file(dir: &Path, file: PathBuf) -> Result<SourceReport, String> {
    let (sources, mut unread) = Sources::read_valid(dir);
    if unread.iter().any(|problem| problem.file == file) {
        unread.retain(|problem| problem.file == file);
        return Ok(report(unread, vec![file]));
    }
    let mut found = lint_sources(&sources);
    if !found.files.contains(&file) {
        // Of too many files the last ones are not read.
        let all = unread.into_iter().find(|problem| problem.file == dir);
        return Err(all.map_or_else(
            || format!("{}: is no source of types: *.luau or *.lua", file.display()),
            |problem| problem.to_string(),
        ));
    }
    (found.types, found.libraries) = (0, 0);
    found.files.retain(|own| *own == file);
    found.list.retain(|own| own.file == file);
    if found.list.iter().any(|own| own.is_error) {
        // It may be for a library that could not be read.
        unread.retain(|problem| problem.file.parent() != Some(dir) && problem.file != dir);
        found.list.extend(report(unread, Vec::new()).list);
    }
    Ok(found)
}

fn report(problems: Vec<Problem>, files: Vec<PathBuf>) -> SourceReport {
    let one = |problem: Problem| SourceProblem {
        line: problem.to_string(),
        is_error: problem.severity == Severity::Error,
        file: problem.file,
    };
    SourceReport { list: problems.into_iter().map(one).collect(), files, ..SourceReport::default() }
}

fn lint_dir(dir: &Path) -> SourceReport {
    match Sources::read(dir) {
        Ok(sources) => lint_sources(&sources),
        Err(problems) => {
            let files = problems.iter().map(|problem| problem.file.clone()).collect();
            report(problems, files)
        }
    }
}

fn lint_sources(sources: &Sources) -> SourceReport {
    let all = sources.types.iter().chain(&sources.libraries).chain(&sources.tests);
    let files = all.map(|source| source.path.clone()).collect();
    let problems = match Scripts::load(sources, &Limits::default()) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    };
    let (types, libraries) = (sources.types.len(), sources.libraries.len());
    SourceReport { types, libraries, ..report(problems, files) }
}

/// Runs the tests of the types of a directory, or one file of them, under these settings, or with the defaults
/// of all of them. None is returned if it has no sources.
///
/// # Errors
/// A line for each thing for which they cannot be run.
pub(crate) fn test(path: &Path, given: Option<&TestSettings>) -> Result<Option<TestReport>, Vec<String>> {
    let (dir, file) = place(path).map_err(|problem| vec![problem])?;
    let limits = given.map_or_else(ScriptLimits::default, |given| given.limits);
    let Some((mut own, _)) = apart(|| load(&dir, limits))? else { return Ok(None) };
    let types: Vec<_> = own.scripts.types().iter().map(|one| one.object_type.name).collect();
    let libraries = own.libraries();
    let (settings, control) = if let Some(given) = given {
        (given.objects.clone(), &*given.control)
    } else {
        // The types of the directory as their sources say, in the place of shipped types too.
        let mut settings = Settings::default();
        settings.types.retain(|shipped| !types.contains(&&*shipped.name));
        (settings, "")
    };
    if let Some(file) = file {
        own.sources.tests.retain(|test| test.path == file);
    }
    let (passed, failed) = match apart(|| Ok(own.run_tests(&settings, control)))? {
        Ok(passed) => (passed, Vec::new()),
        Err(failed) => (Vec::new(), failed),
    };
    Ok(Some(TestReport { types, libraries, passed, failed }))
}

/// The directory, and the file if it is one of its files.
fn place(path: &Path) -> Result<(PathBuf, Option<PathBuf>), String> {
    let cannot = |error| format!("{}: cannot be read: {error}", path.display());
    if path.metadata().map_err(cannot)?.is_dir() {
        return Ok((path.to_owned(), None));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default();
    Ok((dir.to_owned(), Some(dir.join(name))))
}

/// Runs `work` on a thread of its own.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, Vec<String>> + Send) -> Result<T, Vec<String>> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("scripts".to_owned()).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| vec![format!("no thread for the sources: {error}")])?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}
