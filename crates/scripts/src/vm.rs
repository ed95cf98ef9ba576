//! A VM with the sandbox, the library, and the sources, which run once.
//!
//! A script can use only the names in `vm/globals.txt`: Luau's other names are removed before the first
//! source runs. Libraries and globals are read-only from the start. Tables that a source makes become
//! read-only when all sources have run, so that only the object survives a call.
//!
//! # Invariants
//! * Everything that a script can reach in more than one call is read-only, except for a local of a source
//!   that a function assigns, which lint reports.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::ffi::c_void;
use std::rc::Rc;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, LuaOptions, LuaString, StdLib, Table, Value};
use nix::time::{ClockId, clock_gettime};

use crate::bounds;
use crate::call;
use crate::caught;
use crate::library;
use crate::limits::{Breach, Limits};
use crate::raw_call::{self, WatchedVm};
use crate::texts;
use crate::watchdog::VmSlot;

/// The sorted names that a script can use; members of libraries have a dot.
static GLOBALS: &str = include_str!("vm/globals.txt");

/// The names that a script can use; members of libraries have a dot: `string`, `string.rep`.
pub fn globals() -> Vec<&'static str> {
    GLOBALS.lines().collect()
}

/// A compiled source.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The name, as in [`crate::SourceFile::name`].
    pub(crate) name: String,
    /// The file's name in errors: `quota.luau`.
    pub(crate) file: String,
    pub(crate) bytecode: Vec<u8>,
}

/// All compiled sources.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) types: Vec<Chunk>,
    pub(crate) libraries: Vec<Chunk>,
}

/// The longest time for running all sources, unless a call may take longer.
const LOAD_TIME: Duration = Duration::from_secs(1);

/// A VM, which stays with its thread.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) lua: Lua,
    /// The registration with the watchdog.
    watched: WatchedVm,
    /// The results of the types' sources, in their order.
    pub(crate) returned: Vec<Table>,
    /// The processor time for which each source ran, by its name.
    pub(crate) took: BTreeMap<String, Duration>,
    /// The memory of the VM between calls, in bytes.
    settled_bytes: usize,
    memory_bytes: usize,
}

/// The error of a source that could not be run.
#[derive(Debug)]
pub(crate) struct LoadError {
    /// The name of the file.
    pub(crate) file: String,
    pub(crate) error: mlua::Error,
}

impl Vm {
    /// The slot in which calls are noted.
    pub(crate) fn slot(&self) -> &VmSlot {
        self.watched.slot()
    }

    /// A VM that has run all sources.
    ///
    /// # Errors
    /// A source fails, or does not return a table.
    pub(crate) fn open(program: &Program, limits: &Limits) -> Result<Self, LoadError> {
        let failed = |file: &str| {
            let file = file.to_owned();
            move |error| LoadError { file, error }
        };
        let lua = sandbox(program, limits.memory_bytes).map_err(failed(""))?;
        lua.set_app_data(LoadTimes::default());
        let loading = WatchedVm::new(&lua, LOAD_TIME.max(limits.time)).map_err(failed(""))?;
        let (returned, breach) = raw_call::timed(loading.slot(), 1, || Self::load(&lua, program, limits));
        drop(loading);
        let returned = returned.map_err(|LoadError { file, error }| {
            let text = match breach {
                Some(Breach::Time) => {
                    format!("takes longer than {} s to load", LOAD_TIME.max(limits.time).as_secs_f64())
                }
                None if !call::is_memory(&error) => return LoadError { file, error },
                _ => format!("{} to load", Breach::Memory.text(limits)),
            };
            let text = format!("{file}: {text}");
            LoadError { file, error: mlua::Error::runtime(text) }
        })?;
        let settled_bytes = lua.used_memory();
        lua.set_memory_limit(settled_bytes.saturating_add(limits.memory_bytes)).map_err(failed(""))?;
        let watched = WatchedVm::new(&lua, limits.time).map_err(failed(""))?;
        let took = lua.remove_app_data::<LoadTimes>().unwrap_or_default().of.into_inner();
        Ok(Self { lua, watched, returned, took, settled_bytes, memory_bytes: limits.memory_bytes })
    }

    fn load(lua: &Lua, program: &Program, limits: &Limits) -> Result<Vec<Table>, LoadError> {
        let failed = |file: &str| {
            let file = file.to_owned();
            move |error| LoadError { file, error }
        };
        let used = lua.used_memory();
        lua.set_memory_limit(used.saturating_add(limits.memory_bytes)).map_err(failed(""))?;
        let mut returned = Vec::with_capacity(program.types.len());
        let mut freezer = Freezer { lua, seen: HashSet::new() };
        for chunk in &program.types {
            let value = measured(lua, &chunk.name, || run(lua, chunk)).map_err(failed(&chunk.file))?;
            let Value::Table(table) = value else {
                let text = format!("{}: returns {} {NO_TABLE}", chunk.file, a_kind(&value));
                return Err(failed(&chunk.file)(mlua::Error::runtime(text)));
            };
            returned.push(table);
        }
        let require: Function = lua.globals().raw_get("require").map_err(failed(""))?;
        for chunk in &program.libraries {
            let library = require.call::<Value>(&*chunk.name).map_err(failed(&chunk.file))?;
            freezer.freeze(&library).map_err(failed(&chunk.file))?;
        }
        for (chunk, table) in program.types.iter().zip(&returned) {
            freezer.freeze(&Value::Table(table.clone())).map_err(failed(&chunk.file))?;
        }
        lua.gc_collect().map_err(failed(""))?;
        Ok(returned)
    }

    /// Frees the memory that a call has left, if it is at least a quarter of the limit. Returns the VM's
    /// bytes; None: locals of sources keep so much that the VM must be dropped.
    pub(crate) fn collect_garbage(&self) -> Option<usize> {
        let most = self.settled_bytes.saturating_add(self.memory_bytes / 4);
        if self.lua.used_memory() > most {
            self.lua.gc_collect().ok()?;
        }
        Some(self.lua.used_memory()).filter(|used| *used <= most)
    }
}

/// The end of the error of a source that does not return a table.
pub(crate) const NO_TABLE: &str = "instead of a table of methods";

/// The name of a value's type with its article.
pub(crate) fn a_kind(value: &Value) -> String {
    if value.is_nil() { "nil".to_owned() } else { format!("a {}", kind(value)) }
}

/// The name of a value's type.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        other => other.type_name(),
    }
}

/// The processor times of sources.
#[derive(Debug, Default)]
struct LoadTimes {
    /// The time of each source, without those that it requires.
    of: RefCell<BTreeMap<String, Duration>>,
    all: Cell<Duration>,
}

/// Runs a source, and measures its time.
fn measured<R>(lua: &Lua, name: &str, run: impl FnOnce() -> R) -> R {
    let all = || lua.app_data_ref::<LoadTimes>().map_or(Duration::ZERO, |took| took.all.get());
    let (before, others_before) = (used(), all());
    let ran = run();
    let (whole, others) = (used().saturating_sub(before), all().saturating_sub(others_before));
    if let Some(took) = lua.app_data_ref::<LoadTimes>() {
        let own = whole.saturating_sub(others);
        took.of.borrow_mut().insert(name.to_owned(), own);
        took.all.set(took.all.get() + own);
    }
    ran
}

/// The processor time of this thread.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn run(lua: &Lua, chunk: &Chunk) -> mlua::Result<Value> {
    let name = format!("={}", chunk.file);
    lua.load(&chunk.bytecode[..]).set_name(name).set_mode(ChunkMode::Binary).call(())
}

/// A closed VM with the names of [`globals`].
pub(crate) fn sandbox(program: &Program, memory_bytes: usize) -> mlua::Result<Lua> {
    let libraries = StdLib::COROUTINE
        | StdLib::TABLE
        | StdLib::STRING
        | StdLib::UTF8
        | StdLib::BIT
        | StdLib::MATH
        | StdLib::BUFFER;
    // `pcall` must not catch a panic of the library.
    let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
    library::install(&lua)?;
    bounds::install(&lua, memory_bytes)?;
    texts::install(&lua)?;
    caught::install(&lua)?;
    let globals = lua.globals();
    globals.raw_set("require", require(&lua, program)?)?;
    keep_only(&globals, &self::globals())?;
    for pair in globals.pairs::<Value, Value>() {
        freeze_library(&pair?.1)?;
    }
    if let Some(metatable) = lua.type_metatable::<LuaString>() {
        metatable.raw_set("__metatable", "the metatable of strings is locked")?;
        metatable.set_readonly(true);
    }
    globals.set_readonly(true);
    globals.set_safeenv(true);
    Ok(lua)
}

/// Removes names from the globals and their libraries that are not in the list.
fn keep_only(globals: &Table, list: &[&str]) -> mlua::Result<()> {
    for pair in globals.pairs::<String, Value>() {
        let (name, value) = pair?;
        if !list.contains(&&*name) {
            globals.raw_set(name, Value::Nil)?;
        } else if let Value::Table(library) = value {
            for pair in library.pairs::<String, Value>() {
                let (member, _) = pair?;
                if !list.contains(&&*format!("{name}.{member}")) {
                    library.raw_set(member, Value::Nil)?;
                }
            }
        }
    }
    Ok(())
}

fn freeze_library(value: &Value) -> mlua::Result<()> {
    let Value::Table(table) = value else { return Ok(()) };
    for pair in table.pairs::<Value, Value>() {
        freeze_library(&pair?.1)?;
    }
    table.set_readonly(true);
    Ok(())
}

/// `require("lib/window")`: runs a library once.
fn require(lua: &Lua, program: &Program) -> mlua::Result<Function> {
    /// The results of libraries; None: the library is running.
    type LibraryValues = Rc<RefCell<BTreeMap<String, Option<Value>>>>;
    let loaders: mlua::Result<BTreeMap<String, Function>> = program
        .libraries
        .iter()
        .map(|chunk| {
            let name = format!("={}", chunk.file);
            let load = lua.load(&chunk.bytecode[..]).set_name(name).set_mode(ChunkMode::Binary);
            Ok((chunk.name.clone(), load.into_function()?))
        })
        .collect();
    let (loaders, loaded) = (loaders?, LibraryValues::default());
    lua.create_function(move |lua, name: String| {
        let known = loaded.borrow().get(&name).cloned();
        let fault = |text: String| Err(library::arguments::fault(lua, &text));
        match known {
            Some(Some(value)) => return Ok(value),
            Some(None) => return fault(format!("require: {name} requires itself")),
            None => {}
        }
        let Some(function) = loaders.get(&name) else {
            return fault(format!(
                "require: there is no {name}; libraries are files of lib/, as require(\"lib/window\")"
            ));
        };
        loaded.borrow_mut().insert(name.clone(), None);
        let value = measured(lua, &name, || function.call::<Value>(()));
        match value {
            Ok(value) => {
                loaded.borrow_mut().insert(name, Some(value.clone()));
                Ok(value)
            }
            Err(error) => {
                loaded.borrow_mut().remove(&name);
                Err(match error {
                    mlua::Error::RuntimeError(_) => mlua::Error::runtime(call::text_of(&error)),
                    other => other,
                })
            }
        }
    })
}

/// Makes tables of sources read-only.
struct Freezer<'l> {
    lua: &'l Lua,
    seen: HashSet<*const c_void>,
}

impl Freezer<'_> {
    /// Freezes everything that can be reached from this value.
    fn freeze(&mut self, value: &Value) -> mlua::Result<()> {
        let mut next = vec![value.clone()];
        while let Some(value) = next.pop() {
            match &value {
                Value::Table(table) if self.seen.insert(table.to_pointer()) => {
                    for pair in table.pairs::<Value, Value>() {
                        let (key, value) = pair?;
                        next.extend([key, value]);
                    }
                    next.extend(table.metatable().map(Value::Table));
                    table.set_readonly(true);
                }
                Value::Function(function) if self.seen.insert(function.to_pointer()) => {
                    next.extend(raw_call::upvalues(self.lua, function)?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that can be reached, members of tables with a dot.
    fn reached(prefix: &str, table: &Table, names: &mut Vec<String>) {
        for pair in table.pairs::<String, Value>() {
            let (name, value) = pair.unwrap();
            let name = format!("{prefix}{name}");
            if let Value::Table(table) = value {
                assert!(table.is_readonly(), "{name}");
                assert!(table.metatable().is_none(), "{name}");
                reached(&format!("{name}."), &table, names);
            }
            names.push(name);
        }
    }

    #[test]
    fn scripts_reach_the_names_of_the_list() {
        let lua = sandbox(&Program::default(), 16 << 20).unwrap();
        let mut names = Vec::new();
        reached("", &lua.globals(), &mut names);
        names.sort();
        assert!(lua.globals().is_readonly() && lua.globals().metatable().is_none());
        assert_eq!(names, globals(), "\n{}", names.join("\n"));
    }

    fn eval(lua: &Lua, text: &str) -> String {
        match lua.load(text).set_name("=t").eval::<String>() {
            Ok(text) => text,
            Err(error) => call::text_of(&error),
        }
    }

    #[test]
    fn what_other_luaus_have_is_not_there() {
        let lua = sandbox(&Program::default(), 16 << 20).unwrap();
        for name in [
            "getfenv",
            "setfenv",
            "loadstring",
            "load",
            "dofile",
            "newproxy",
            "collectgarbage",
            "gcinfo",
            "debug",
            "io",
            "package",
            "vector",
            "integer",
            "_G",
            "shared",
            "script",
            "string.dump",
            "os.execute",
            "os.getenv",
            "os.exit",
            "os.remove",
            "os.tmpname",
            "table.foreach",
            "table.foreachi",
            "cg.test",
        ] {
            assert_eq!(eval(&lua, &format!("return type({name})")), "nil", "{name}");
        }
    }

    #[test]
    fn globals_and_libraries_are_read_only() {
        let lua = sandbox(&Program::default(), 16 << 20).unwrap();
        for change in [
            "x = 1",
            "string = {}",
            "pcall = error",
            "cg = nil",
            "function f() end f()",
            "return coroutine.wrap(function() x = 1 end)()",
            "string.rep = 1",
            "string.new = 1",
            "cg.now = function() return 0 end",
            "cg.json.encode = 1",
            "os.time = nil",
            "math.random = nil",
            "rawset(string, 'rep', nil)",
            "rawset(cg, 'x', 1)",
            "table.clear(string)",
            "table.insert(string, 1)",
            "setmetatable(string, {})",
            "setmetatable(cg, {__index = 1})",
            "table.move({1}, 1, 1, 1, math)",
            "table.sort(string)",
        ] {
            let text = eval(&lua, &format!("{change} return 'changed'").replace("() return 'changed'", "()"));
            assert!(text.ends_with("attempt to modify a readonly table"), "{change}: {text}");
        }
        assert_eq!(
            eval(&lua, "getmetatable('').__index = nil"),
            "t:1: attempt to index string with '__index'"
        );
    }
}
