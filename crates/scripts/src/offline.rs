//! Tests of types: `*.test.luau`, run on servers of their own ([`TestServer`]), with clocks that tests move.
//!
//! A file is run from its first line to its last. If it returns a table, its functions named `test_...` are run too, in the
//! order of their names; each begins with an empty server at 2026-01-01T00:00:00Z.
//!
//! # Invariants
//! * A test runs in a VM of its own, with the sandbox and the limits of memory that sources have, and `cg.test`.

mod functions;
mod server;
mod show;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::Zone;
use mlua::chunk::ChunkMode;
use mlua::{Function, Value};

use crate::call::{is_memory, text_of};
use crate::json;
use crate::limits::{Breach, Limits};
use crate::load;
use crate::problem::{Problem, Severity};
use crate::raw_call::{self, WatchedVm};
use crate::scripts::Scripts;
use crate::source::{SourceFile, Sources};
use crate::{caught, texts, vm};

pub use server::{Seen, TestReply, TestServer};
pub use show::{escaped, quoted};

/// The time at which a test begins, in milliseconds: 2026-01-01T00:00:00Z.
const START_MS: u64 = 1_767_225_600_000;
/// Longest time that a file of tests takes, on the processor.
const FILE_TIME: Duration = Duration::from_secs(1);
/// Memory of a VM of tests.
const MEMORY_BYTES: usize = 64 << 20;
/// What an error's text has before its traceback.
const STACK: &str = "\nstack traceback:\n";
/// Luau's text where an error had no memory for its traceback.
const NO_HANDLER: &str = "error in error handling";

/// A test that has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestResult {
    /// The file's name, and behind a blank the function's, if it is one.
    pub name: String,
    /// How often it called `t.eq` and `t.error`.
    pub checks: usize,
}

/// Makes an empty server whose clock shows this time, in milliseconds.
pub type StartServer<'s> = dyn Fn(u64) -> Result<Box<dyn TestServer>, String> + 's;

/// Runs all tests of the sources, with the local time of `timezone`.
///
/// # Errors
/// The tests that fail, with their lines, and what was expected.
pub fn run_tests(
    scripts: &Scripts,
    sources: &Sources,
    timezone: &str,
    start: &StartServer<'_>,
) -> Result<Vec<TestResult>, Vec<Problem>> {
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for source in &sources.tests {
        let mut file = match TestFile::open(scripts, source, timezone, start) {
            Ok(file) => file,
            Err(error) => {
                failed.push(error);
                continue;
            }
        };
        match file.run() {
            Ok(mut tests) => passed.append(&mut tests),
            Err(mut problems) => failed.append(&mut problems),
        }
    }
    if failed.is_empty() { Ok(passed) } else { Err(failed) }
}

fn too_much_memory() -> String {
    Breach::Memory.text(&Limits { memory_bytes: MEMORY_BYTES, ..Limits::default() })
}

fn problem(file: &Path, line: Option<usize>, text: String) -> Problem {
    Problem { file: file.to_owned(), line, severity: Severity::Error, text }
}

/// What the functions of `cg.test` work on.
struct TestState {
    server: Box<dyn TestServer>,
    checks: usize,
    /// The first check that has failed, which the test may have caught.
    failed: Option<String>,
}

impl TestState {
    fn new(start: &StartServer<'_>) -> Result<Self, String> {
        Ok(Self { server: start(START_MS)?, checks: 0, failed: None })
    }
}

/// A file of tests.
struct TestFile<'f> {
    source: &'f SourceFile,
    start: &'f StartServer<'f>,
    /// As it is named in errors.
    name: String,
    chunk: Function,
    /// Calls a function of the test: [`raw_call::noting`].
    noting: Function,
    shared: Rc<RefCell<TestState>>,
    watched: WatchedVm,
}

impl<'f> TestFile<'f> {
    fn open(
        scripts: &Scripts,
        source: &'f SourceFile,
        timezone: &str,
        start: &'f StartServer<'f>,
    ) -> Result<Self, Problem> {
        let chunk = load::compile(source)?;
        let wrong = |error: mlua::Error| problem(&source.path, None, text_of(&error));
        let other = |text| problem(&source.path, None, text);
        let shared = Rc::new(RefCell::new(TestState::new(start).map_err(other)?));
        let lua = vm::sandbox(&scripts.program, MEMORY_BYTES).map_err(wrong)?;
        let zone = Zone::named(timezone).map_err(other)?;
        functions::install(&lua, &shared, &zone).map_err(wrong)?;
        let name = chunk.file.replacen(".lua", ".test.lua", 1);
        let chunk = lua
            .load(&chunk.bytecode[..])
            .set_name(format!("={name}"))
            .set_mode(ChunkMode::Binary)
            .into_function()
            .map_err(wrong)?;
        let noting = raw_call::noting(&lua).map_err(wrong)?;
        lua.set_memory_limit(lua.used_memory() + MEMORY_BYTES).map_err(wrong)?;
        let watched = WatchedVm::new(&lua, FILE_TIME).map_err(wrong)?;
        Ok(Self { source, start, name, chunk, noting, shared, watched })
    }

    fn run(&mut self) -> Result<Vec<TestResult>, Vec<Problem>> {
        // Calls of types have numbers of their own, in slots of their own.
        let slot = Arc::clone(self.watched.slot());
        raw_call::take_test_line();
        let (ran, breach) = raw_call::timed(&slot, 1, || self.run_all());
        let text = match breach {
            None => return ran,
            Some(Breach::Time) => format!("takes longer than {} s", FILE_TIME.as_secs()),
            Some(Breach::Memory) => too_much_memory(),
        };
        let mut problems = ran.err().unwrap_or_default();
        let noted = raw_call::take_test_line();
        // Without memory there may be none for the text of the limit either.
        let ends: &[&str] = match breach {
            Some(Breach::Memory) => &[json::OVER, NO_HANDLER, &text],
            _ => &[json::OVER, NO_HANDLER],
        };
        let end = |one: &Problem| ends.iter().find(|end| one.text.ends_with(**end)).map(|end| end.len());
        // Whatever runs after a limit was exceeded has failed for that reason alone.
        match problems.iter().enumerate().find_map(|(place, one)| Some((place, end(one)?))) {
            Some((first, end)) => {
                problems.truncate(first + 1);
                let found = &mut problems[first];
                found.line = noted.or(found.line);
                found.text.truncate(found.text.len() - end);
                found.text.push_str(&text);
            }
            None => problems.push(problem(&self.source.path, noted, text)),
        }
        Err(problems)
    }

    fn run_all(&self) -> Result<Vec<TestResult>, Vec<Problem>> {
        let returned: Value = self.whole(self.noting.call(&self.chunk)).map_err(|problem| vec![problem])?;
        let top = TestResult { name: self.name.clone(), checks: self.shared.borrow().checks };
        let Value::Table(table) = returned else { return Ok(vec![top]) };
        let mut tests = Vec::new();
        for pair in table.pairs::<Value, Value>() {
            match pair.map_err(|error| vec![self.problem(&error, None)])? {
                (Value::String(name), Value::Function(run)) if name.as_bytes().starts_with(b"test_") => {
                    tests.push((name.to_string_lossy(), run));
                }
                (key, _) => {
                    let key = match &key {
                        Value::String(name) => show::head(&name.to_string_lossy()),
                        other => other.to_string().unwrap_or_default(),
                    };
                    let text = format!("returns {key}: only functions named test_... are run");
                    return Err(vec![problem(&self.source.path, None, text)]);
                }
            }
        }
        tests.sort_by(|one, other| one.0.cmp(&other.0));
        let (mut passed, mut failed) = (Vec::new(), Vec::new());
        if top.checks > 0 || tests.is_empty() {
            passed.push(top);
        }
        for (name, run) in tests {
            let fresh = TestState::new(self.start);
            let fresh = fresh.map_err(|text| vec![problem(&self.source.path, None, text)])?;
            *self.shared.borrow_mut() = fresh;
            match self.whole(self.noting.call::<()>(&run)) {
                Ok(()) => {
                    let name = format!("{} {name}", self.name);
                    passed.push(TestResult { name, checks: self.shared.borrow().checks });
                }
                Err(mut found) => {
                    found.text = format!("{}: {}", show::head(&name), found.text);
                    found.line = found.line.or_else(|| run.info().line_defined);
                    failed.push(found);
                }
            }
        }
        if failed.is_empty() { Ok(passed) } else { Err(failed) }
    }

    /// What a test has returned, unless a check has failed whose error it caught.
    fn whole<R>(&self, returned: mlua::Result<R>) -> Result<R, Problem> {
        let failed = self.shared.borrow_mut().failed.take();
        match returned {
            Err(mlua::Error::RuntimeError(text)) => {
                // The last traceback is that of the function that calls tests.
                let text = text.rsplit_once(STACK).map_or(&*text, |(text, _)| text);
                Err(self.problem(&mlua::Error::runtime(text), failed.as_deref()))
            }
            Err(error) => Err(self.problem(&error, failed.as_deref())),
            Ok(returned) => failed
                .map_or(Ok(returned), |text| Err(self.problem(&mlua::Error::runtime(&text), Some(&text)))),
        }
    }

    /// `failed`: the text of a check, whose values are cut.
    fn problem(&self, error: &mlua::Error, failed: Option<&str>) -> Problem {
        let whole = text_of(error);
        let (mut line, mut text) = (None, &*whole);
        // `coroutine.wrap` adds a place to the place of the error.
        while let Some((place, rest)) = texts::place(text).zip(text.split_once(": ")) {
            match place.rsplit_once(':') {
                Some((file, number)) if file == self.name => line = number.parse().ok(),
                Some((functions::PRELUDE, _)) => {}
                _ => break,
            }
            text = rest.1;
        }
        if is_memory(error) || text == caught::MEMORY {
            let line = raw_call::take_test_line().or(line);
            return problem(&self.source.path, line, too_much_memory());
        }
        let line = line.or_else(|| self.line_of_stack(error));
        let text = if failed == Some(&*whole) { text.to_owned() } else { show::head(text) };
        problem(&self.source.path, line, text)
    }

    /// The line of the test that ran when an error without a place was raised.
    fn line_of_stack(&self, error: &mlua::Error) -> Option<usize> {
        let stack = match error {
            mlua::Error::CallbackError { traceback, .. } => traceback,
            mlua::Error::RuntimeError(text) => text.rsplit_once(STACK)?.1,
            _ => return None,
        };
        stack.lines().find_map(|frame| {
            let digits = frame.trim_start().strip_prefix(&*self.name)?.strip_prefix(':')?;
            digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
    }
}
