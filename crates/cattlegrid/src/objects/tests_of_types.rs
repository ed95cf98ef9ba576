//! `cattlegrid objects test`: transcripts, and tests of types of users' own.
//!
//! A directory has both: `*.memc` and `*.test.luau`. Its tests run first; transcripts of a directory whose tests fail are not
//! run, since a server would not take its types. A directory whose sources are all in folders has its transcripts run without them, and
//! then its folders.

use std::path::{Path, PathBuf};

use cattlegrid_config::{UsageError, read_file};

use crate::own_types::{self, TestReport, TestSettings, UNTESTED};

use super::{
    ObjectsError, counted, directories, is_source, is_test, no_objects, server_settings, transcript,
};

/// What was run.
#[derive(Debug, Default)]
struct Results {
    /// The rule file under whose settings tests of types are run.
    config: Option<PathBuf>,
    /// A line for each file.
    passed: Vec<String>,
    /// A line or more for each mistake.
    failed: Vec<String>,
}

/// Runs all that the paths name, tests of types under the settings of a server with the rule file `config`; a
/// line for each file. Without a path the directory of the rule file is tested.
///
/// # Errors
/// A file cannot be read or used; or what differs.
pub(super) fn test(config: Option<&Path>, paths: &[PathBuf]) -> Result<String, ObjectsError> {
    let mut results = Results { config: config.map(Path::to_owned), ..Results::default() };
    let own = config.filter(|_| paths.is_empty()).map(dir_of).transpose()?;
    for path in paths.iter().chain(&own) {
        if path.is_dir() {
            results.of_all(path)?;
        } else if is_test(path) {
            if results.of_types(path)? == Some(0) {
                let problem = format!("{}: is no file of tests of types", path.display());
                return Err(UsageError::new(problem).into());
            }
        } else if is_source(path) {
            let problem = format!(
                "{}: is a type, which is tested by its *.test.luau and *.memc: name one of them, or the directory",
                path.display()
            );
            return Err(UsageError::new(problem).into());
        } else {
            results.of_transcript(path, types_beside(path))?;
        }
    }
    let Results { passed, failed, .. } = results;
    if failed.is_empty() { Ok(passed.concat()) } else { Err(ObjectsError::Differs(failed.join("\n"))) }
}

/// The directory of a rule file.
fn dir_of(file: &Path) -> Result<PathBuf, UsageError> {
    let objects =
        server_settings(&[("--config", file)], UNTESTED)?.objects.ok_or_else(|| no_objects(file))?;
    objects.dir.ok_or_else(|| {
        let problem = "[objects] has no dir, so it has no types of your own; name a directory";
        UsageError::new(format!("{}: {problem}", file.display()))
    })
}

/// The settings of a server with this rule file and the types in `dir`, of which the tests are run.
fn settings_under(file: &Path, dir: &Path) -> Result<TestSettings, UsageError> {
    let settings = server_settings(&[("--config", file), ("--objects", dir)], UNTESTED)?;
    let objects = settings.objects.ok_or_else(|| no_objects(file))?;
    let (limits, control) = (objects.limits, settings.protection.control);
    Ok(TestSettings { objects: objects.tested(), control, limits })
}

/// The directory of a transcript, if it has types.
fn types_beside(file: &Path) -> Option<&Path> {
    let dir = file.parent().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?;
    // A directory that cannot be listed has none that could be read.
    let mut entries = dir.read_dir().ok()?.flatten();
    entries.any(|entry| is_source(&entry.path())).then_some(dir)
}

/// The transcripts of a directory.
fn transcripts(dir: &Path) -> Result<Vec<PathBuf>, UsageError> {
    let cannot = |error| UsageError::new(format!("{}: cannot be read: {error}", dir.display()));
    let mut found = Vec::new();
    for entry in dir.read_dir().map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|end| end == "memc") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

impl Results {
    fn of_all(&mut self, path: &Path) -> Result<(), ObjectsError> {
        let all = directories(path);
        if !all.iter().any(|dir| dir == path) {
            // Without types of its own.
            transcripts(path)?.iter().try_for_each(|file| self.of_transcript(file, None))?;
        }
        all.iter().try_for_each(|dir| self.of_dir(dir))
    }

    fn of_dir(&mut self, dir: &Path) -> Result<(), ObjectsError> {
        let transcripts = transcripts(dir)?;
        let before = self.failed.len();
        let types = self.of_types(dir)?;
        if types.unwrap_or(0) == 0 && transcripts.is_empty() {
            let problem = format!("{}: has no tests: *.test.luau or *.memc", dir.display());
            return Err(UsageError::new(problem).into());
        }
        if self.failed.len() > before {
            let count = transcripts.len();
            if count > 0 {
                let were = if count == 1 { "was" } else { "were" };
                let transcripts = counted(count, "transcript");
                self.failed.push(format!("{}: {transcripts} {were} not run", dir.display()));
            }
            return Ok(());
        }
        transcripts.iter().try_for_each(|path| self.of_transcript(path, types.map(|_| dir)))
    }

    /// How many tests there are; None: the directory has no sources.
    fn of_types(&mut self, path: &Path) -> Result<Option<usize>, ObjectsError> {
        let wrong = |problems: Vec<String>| UsageError::new(problems.join("\n"));
        let dir = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let place = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let settings = self.config.as_deref().map(|file| settings_under(file, place)).transpose()?;
        let tested = own_types::test(path, settings.as_ref()).map_err(wrong)?;
        let Some(TestReport { types, libraries, passed, failed }) = tested else { return Ok(None) };
        if path.is_dir() {
            let for_require = match &libraries[..] {
                [] => String::new(),
                libraries => format!("; for require: {}", libraries.join(", ")),
            };
            self.passed.push(format!("{}: types: {}{for_require}\n", path.display(), types.join(", ")));
        }
        let count = passed.len() + failed.len();
        let line = |(name, checks): (String, usize)| {
            format!("{}: {}\n", dir.join(name).display(), counted(checks, "check"))
        };
        self.passed.extend(passed.into_iter().map(line));
        self.failed.extend(failed);
        Ok(Some(count))
    }

    fn of_transcript(&mut self, file: &Path, dir: Option<&Path>) -> Result<(), ObjectsError> {
        let cannot = |error| UsageError::new(format!("{}: cannot be read: {error}", file.display()));
        let text = read_file(file).map_err(cannot)?;
        match transcript::run(file, &text, dir)? {
            Ok(requests) => {
                self.passed.push(format!("{}: {}\n", file.display(), counted(requests, "request")));
            }
            Err(difference) => self.failed.push(difference),
        }
        Ok(())
    }
}
