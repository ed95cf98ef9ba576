//! Loading of types: sources are compiled, run once in a VM, and their results are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::{
    ARGUMENTS_MAX, Arguments, Eviction, Host, HostType, MethodDefinition, NoWorld, ScriptCall, ScriptMethod,
    ScriptMethodId, ScriptOutcome, Settings, TYPE_METHODS_MAX, TYPES_MAX, TypeSettings, Zone, define,
};
use mlua::chunk::Compiler;
use mlua::{Function, Table, Value};

use crate::bytecode::Bytecode;
use crate::call;
use crate::compiler;
use crate::limits::{Limits, Milliseconds};
use crate::lint::{line_of_field, lint};
use crate::names::Names;
use crate::problem::{Problem, Severity};
use crate::scripts::{MethodState, Scripts, TypeDefinition};
use crate::source::{SourceFile, Sources};
use crate::usage::Usage;
use crate::vm::{self, Chunk, LoadError, NO_TABLE, Program, Vm, kind};

/// Methods that every object has.
const RESERVED: [&str; 5] = ["drop", "ttl", "exists", "dump", "size"];
/// A reserved name too, which is a method of the type.
const METHODS: &str = "methods";
/// The longest name of a type or method, in bytes.
const NAME_MAX: usize = 16;
/// A source may run at least this long, since shorter times are not measured well.
const SOURCE_TIME: Duration = Duration::from_millis(1);
/// A source is too slow if it is in each of this many attempts.
const ATTEMPTS: usize = 5;
/// The time at which `create` is tried: 2026-01-01T00:00:00Z.
const CREATE_AT_MS: u64 = 1_767_225_600_000;

impl Scripts {
    /// The types of these sources, and warnings. Each source is compiled and run once; tests are not run.
    ///
    /// # Errors
    /// The problems in the sources.
    pub fn load(sources: &Sources, limits: &Limits) -> Result<(Arc<Self>, Vec<Problem>), Vec<Problem>> {
        if let [first, ..] = &sources.types[..]
            && sources.types.len() > TYPES_MAX
        {
            let dir = first.path.parent().unwrap_or(Path::new(""));
            let text = format!("has {} types, at most {TYPES_MAX}", sources.types.len());
            return Err(vec![error(dir, None, text)]);
        }
        let (mut problems, warnings): (Vec<_>, Vec<_>) =
            lint(sources, &vm::globals()).into_iter().partition(|one| one.severity == Severity::Error);
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut chunks = |list: &[SourceFile]| -> Vec<Chunk> {
            list.iter()
                .filter_map(|source| compile(source).map_err(|problem| problems.push(problem)).ok())
                .collect()
        };
        let program = Program { types: chunks(&sources.types), libraries: chunks(&sources.libraries) };
        if !problems.is_empty() {
            return Err(problems);
        }
        let vm = Vm::open(&program, limits).map_err(|error| vec![problem_of(sources, &error)])?;
        let slow = slow(sources, &program, limits, &vm);
        if !slow.is_empty() {
            return Err(slow);
        }
        let mut scripts = Self {
            number: Self::next_number(),
            program,
            limits: *limits,
            types: Vec::new(),
            definitions: Vec::new(),
            digest: digest(sources, limits),
            usage: Usage::default(),
        };
        for (source, table) in sources.types.iter().zip(&vm.returned) {
            let mut reader = TypeReader::new(source);
            match reader.read(table) {
                Some((host_type, definition)) => {
                    scripts.types.push(host_type);
                    scripts.definitions.push(definition);
                }
                None => problems.append(&mut reader.problems),
            }
        }
        drop(vm);
        if problems.is_empty() {
            let tried = sources.types.iter().enumerate();
            problems.extend(tried.filter_map(|(place, source)| scripts.try_create(place, source)));
        }
        if problems.is_empty() { Ok((Arc::new(scripts), warnings)) } else { Err(problems) }
    }

    /// Makes an object with the arguments of the source's `create`, and drops it; returns the problem.
    fn try_create(&self, place: usize, source: &SourceFile) -> Option<Problem> {
        let own_settings = &self.types[place].settings;
        let create = own_settings.create.as_ref()?;
        let line = line_in(source, None, "create");
        let wrong = |text: &str| Some(error(&source.path, line, format!("create: {text}")));
        let Some(new) = self.definitions[place].new else { return wrong("the type has no method new") };
        let call = ScriptCall {
            object_type: place,
            method: ScriptMethodId::Own(new),
            key: b"k",
            arguments: &Arguments::of(create.iter().map(Vec::as_slice)),
            own: None,
            replaces: false,
            others: &[],
            expires_ms: None,
            now_ms: CREATE_AT_MS,
            random: 0,
            settings: &Settings::default(),
            own_settings,
            zone: &Zone::UTC,
        };
        match self.call(&call, &mut NoWorld, &mut Vec::new()).outcome {
            ScriptOutcome::Value { .. } => None,
            ScriptOutcome::Error(line) => wrong(&line),
            ScriptOutcome::Miss | ScriptOutcome::Moved => wrong("new refuses these arguments"),
        }
    }
}

/// Problems of sources that run longer than a call may. Each thread runs the sources, and again after a call
/// that exceeded a limit.
fn slow(sources: &Sources, program: &Program, limits: &Limits, vm: &Vm) -> Vec<Problem> {
    let limit = limits.time.max(SOURCE_TIME);
    let mut took: Vec<_> = vm.took.iter().filter(|(_, took)| **took > limit).map(|(k, v)| (k, *v)).collect();
    // The shortest of several attempts is used, since other work on the machine may slow one down.
    for _ in 1..ATTEMPTS {
        if took.is_empty() {
            break;
        }
        let Ok(again) = Vm::open(program, limits) else { break };
        for (name, took) in &mut took {
            *took = again.took.get(*name).map_or(*took, |again| (*took).min(*again));
        }
        took.retain(|(_, took)| *took > limit);
    }
    let problem = |(name, took): (&String, Duration)| {
        let all = sources.types.iter().chain(&sources.libraries);
        let path = all
            .into_iter()
            .find(|source| source.name == *name)
            .map_or_else(PathBuf::new, |one| one.path.clone());
        let took = Milliseconds(Duration::from_micros(took.as_micros().next_multiple_of(100) as u64));
        let limit = Milliseconds(limit);
        error(
            &path,
            None,
            format!(
                "takes {took} of processor time to load, more than the {limit} of a call: every thread loads it, and again after a call that went over a limit; compute less outside of its methods"
            ),
        )
    };
    took.into_iter().map(problem).collect()
}

fn digest(sources: &Sources, limits: &Limits) -> u64 {
    let numbers = [limits.time.as_nanos(), limits.memory_bytes as u128, limits.state_max as u128];
    let mut bytes = sources.digest().to_le_bytes().to_vec();
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    rapidhash::v3::rapidhash_v3(&bytes)
}

pub(crate) fn compile(source: &SourceFile) -> Result<Chunk, Problem> {
    let bytecode = compiled(source, &compiler::to_run())?;
    Ok(Chunk { name: source.name.clone(), file: file_of(source), bytecode })
}

/// The analysis of a source by the compiler: its functions and names.
pub(crate) fn describe(source: &SourceFile) -> Result<Bytecode, Problem> {
    // Named constants have registers, and these may be too few. Without names such a source can still run.
    let described = compiled(source, &compiler::to_describe());
    let bytecode = described.or_else(|_| compiled(source, &compiler::to_run()))?;
    Bytecode::read(&bytecode)
        .ok_or_else(|| error(&source.path, None, "is compiled to bytecode of another version".to_owned()))
}

fn compiled(source: &SourceFile, compiler: &Compiler) -> Result<Vec<u8>, Problem> {
    compiler::compile(&source.text, compiler).map_err(|(line, text)| error(&source.path, line, text))
}

/// The file's name in errors, which has its folder for a library.
fn file_of(source: &SourceFile) -> String {
    let end = source.path.extension().map_or_else(|| "luau".into(), |end| end.to_string_lossy());
    format!("{}.{end}", source.name)
}

fn problem_of(sources: &Sources, failed: &LoadError) -> Problem {
    let text = call::text_of(&failed.error);
    let all = || sources.types.iter().chain(&sources.libraries);
    // The error may be raised in a library that the file requires.
    let at = all().find(|source| text.starts_with(&format!("{}:", file_of(source))));
    let source = at.or_else(|| all().find(|source| file_of(source) == failed.file));
    let file = source.map_or_else(|| failed.file.clone(), file_of);
    let (mut line, text) = line_of(&text, &[&file]);
    if line.is_none() && text.ends_with(NO_TABLE) {
        line = source.and_then(|source| describe(source).ok()?.end());
    }
    error(&source.map_or_else(PathBuf::new, |source| source.path.clone()), line, text)
}

/// Splits `FILE:LINE: TEXT`, if it begins with one of these files.
fn line_of(text: &str, files: &[&str]) -> (Option<usize>, String) {
    let placed = files.iter().find_map(|file| {
        let (line, text) = text.strip_prefix(file)?.strip_prefix(':')?.split_once(':')?;
        Some((Some(line.parse().ok()?), text.trim_start().to_owned()))
    });
    placed.unwrap_or_else(|| {
        let text = files.last().and_then(|file| text.strip_prefix(file)?.strip_prefix(": ")).unwrap_or(text);
        (None, text.to_owned())
    })
}

fn error(path: &Path, line: Option<usize>, text: String) -> Problem {
    Problem { file: path.to_owned(), line, severity: Severity::Error, text }
}

/// The parameters of a method, without its object.
#[derive(Debug, Clone, Default)]
struct Signature {
    /// The names, and whether each is required.
    list: Vec<(String, bool)>,
    variadic: bool,
}

impl Signature {
    fn bounds(&self) -> (usize, usize) {
        let least = self.list.iter().rposition(|(_, required)| *required).map_or(0, |place| place + 1);
        (least, if self.variadic { ARGUMENTS_MAX } else { self.list.len() })
    }

    fn usage(&self) -> String {
        let least = self.bounds().0;
        let own = self
            .list
            .iter()
            .enumerate()
            .map(|(place, (name, _))| if place < least { name.clone() } else { format!("[{name}]") });
        own.chain(self.variadic.then(|| "[...]".to_owned())).collect::<Vec<_>>().join(" ")
    }
}

/// Reads the result of a source.
struct TypeReader<'s> {
    source: &'s SourceFile,
    /// None: the compiler has an unknown version.
    bytecode: Option<Bytecode>,
    problems: Vec<Problem>,
}

/// The function of a method, and its properties.
struct MethodSource {
    function: Function,
    reads: bool,
    keys: Vec<usize>,
}

impl<'s> TypeReader<'s> {
    fn new(source: &'s SourceFile) -> Self {
        Self { source, bytecode: describe(source).ok(), problems: Vec::new() }
    }

    /// Adds a problem. `field`: the field that it concerns, such as `ttl` or `read.left`, or "" for the whole
    /// result.
    fn problem(&mut self, field: &str, text: String) {
        let line = line_in(self.source, self.bytecode.as_ref(), field);
        self.problems.push(error(&self.source.path, line, text));
    }

    /// Reads the type; None: there are problems.
    fn read(&mut self, table: &Table) -> Option<(HostType, TypeDefinition)> {
        let mut methods: BTreeMap<String, MethodSource> = BTreeMap::new();
        let mut settings = TypeSettings::new(&self.source.name);
        let (mut version, mut create_only, mut create, mut keys) = (1, false, None, None);
        let mut migrates = false;
        if !is_name(&self.source.name) {
            self.problems.push(error(&self.source.path, None, format!("a type is named as {NAMES}")));
        }
        for (name, value) in self.entries("", table) {
            match (&*name, value) {
                ("migrate", Value::Function(_)) => migrates = true,
                (_, Value::Function(function)) => self.method(&mut methods, name, function, false),
                ("read", Value::Table(read)) => {
                    for (name, value) in self.entries("read", &read) {
                        match value {
                            Value::Function(function) => self.method(&mut methods, name, function, true),
                            other => self.problem(&format!("read.{name}"), format!("read.{name} is a {}, not a function", kind(&other))),
                        }
                    }
                }
                ("version", value) => match whole(&value, 1, u64::from(u16::MAX)) {
                    Some(number) => version = number as u16,
                    None => self.problem("version", "version must be a whole number from 1 to 65535".to_owned()),
                },
                ("ttl", value) => match whole(&value, 0, u64::from(u32::MAX)) {
                    Some(seconds) => settings.ttl_s = seconds as u32,
                    None => self.problem("ttl", "ttl must be whole seconds from 0 to 4294967295".to_owned()),
                },
                ("create_only", Value::Boolean(value)) => create_only = value,
                ("create_only", _) => self.problem("create_only", "create_only must be true or false".to_owned()),
                ("evict", Value::String(value)) if value == "never" => settings.evict = Eviction::Never,
                ("evict", Value::String(value)) if value == "normal" => settings.evict = Eviction::Normal,
                ("evict", _) => self.problem("evict", "evict must be \"never\" or \"normal\"".to_owned()),
                ("create", Value::Table(value)) => create = Some(value),
                ("create", _) => self.problem("create", "create must be a table: the arguments of new".to_owned()),
                ("keys", Value::Table(value)) => keys = Some(value),
                ("keys", _) => self.problem("keys", "keys must be a table: {union = {1, 2}}".to_owned()),
                (_, other) => self.problem(&name, format!(
                    "{name} is a {}: a type has functions, and read, version, ttl, create, create_only, evict, migrate and keys",
                    kind(&other)
                )),
            }
        }
        if methods.is_empty() && self.problems.is_empty() {
            self.problem("", "the table that it returns has no methods".to_owned());
        }
        if methods.len() > TYPE_METHODS_MAX {
            self.problem("", format!("has {} methods, more than {TYPE_METHODS_MAX}", methods.len()));
        }
        let takes: BTreeMap<String, Signature> = methods
            .iter()
            .map(|(name, found)| (name.clone(), self.signature(name, &found.function)))
            .collect();
        if let Some(keys) = keys {
            self.keys(&keys, &mut methods, &takes);
        }
        if let Some(create) = create {
            settings.create = self.create(&create, takes.get("new"));
        }
        if !self.problems.is_empty() {
            return None;
        }
        let definitions: Vec<MethodDefinition> = takes
            .iter()
            .map(|(name, takes)| MethodDefinition {
                name: name.clone(),
                arguments: takes.bounds(),
                usage: takes.usage(),
                runs_absent: name == "new",
            })
            .collect();
        let defined = match define(&self.source.name, &definitions) {
            Ok(defined) => defined,
            Err(text) => {
                self.problems.push(error(&self.source.path, None, text));
                return None;
            }
        };
        let object_type = defined.object_type();
        let definition = TypeDefinition {
            _defined: defined,
            version,
            create_only,
            new: definitions.iter().position(|method| method.name == "new"),
            names: Names::of(object_type.id),
            methods: definitions.iter().map(|_| MethodState::default()).collect(),
        };
        let about = methods.into_values().map(|found| ScriptMethod { reads: found.reads, keys: found.keys });
        Some((HostType { object_type, settings, version, migrates, methods: about.collect() }, definition))
    }

    /// The entries of the table under `field` by their names, which must be strings.
    fn entries(&mut self, field: &str, table: &Table) -> BTreeMap<String, Value> {
        let mut entries = BTreeMap::new();
        for pair in table.pairs::<Value, Value>() {
            match pair {
                Ok((Value::String(name), value)) => {
                    entries.insert(name.to_string_lossy(), value);
                }
                Ok((key, _)) => {
                    self.problem(field, format!("has an entry under a {}: entries have names", kind(&key)));
                }
                Err(fault) => self.problem(field, fault.to_string()),
            }
        }
        entries
    }

    fn method(
        &mut self,
        methods: &mut BTreeMap<String, MethodSource>,
        name: String,
        function: Function,
        reads: bool,
    ) {
        let field = if reads { format!("read.{name}") } else { name.clone() };
        if RESERVED.contains(&&*name) || name == METHODS {
            return self.problem(
                &field,
                format!("{name}: every object has a method of this name: choose another one"),
            );
        }
        if !is_name(&name) {
            return self.problem(&field, format!("method {name:?}: a method is named as {NAMES}"));
        }
        if reads && name == "new" {
            return self.problem(&field, "read.new: new makes an object: move it out of read".to_owned());
        }
        if methods.contains_key(&name) {
            return self.problem(
                &format!("read.{name}"),
                format!("{name} and read.{name}: two methods of one name"),
            );
        }
        methods.insert(name, MethodSource { function, reads, keys: Vec::new() });
    }

    /// The parameters of a method, without its object.
    fn signature(&self, name: &str, function: &Function) -> Signature {
        let info = function.info();
        let count = usize::from(info.num_params);
        let is_own = info.short_src.is_some_and(|file| file == file_of(self.source));
        let known = self.bytecode.as_ref().filter(|_| is_own).zip(info.line_defined);
        let known = known.and_then(|(bytecode, line)| {
            bytecode.parameters(line, info.name.as_deref().unwrap_or_default(), count)
        });
        let mut list = known.unwrap_or_else(|| {
            // The function was made elsewhere.
            (1..=count).map(|number| (format!("arg{number}"), false)).collect()
        });
        if name != "new" && !list.is_empty() {
            list.remove(0);
        }
        // Each parameter after an optional one is optional too.
        if let Some(first) = list.iter().position(|(_, is_required)| !is_required) {
            for (_, is_required) in &mut list[first..] {
                *is_required = false;
            }
        }
        Signature { list, variadic: info.is_vararg }
    }

    /// Reads `keys = {union = {1, 2}}`: the positions, from 1, of arguments that are keys of objects.
    fn keys(
        &mut self,
        keys: &Table,
        methods: &mut BTreeMap<String, MethodSource>,
        takes: &BTreeMap<String, Signature>,
    ) {
        for (name, value) in self.entries("keys", keys) {
            let field = format!("keys.{name}");
            let Some(found) = methods.get_mut(&name).filter(|_| name != "new") else {
                self.problem(&field, format!("keys.{name}: there is no method {name} with an object"));
                continue;
            };
            let most = takes[&name].bounds().1;
            let Value::Table(list) = value else {
                self.problem(&field, format!("keys.{name} must be a list of numbers of arguments"));
                continue;
            };
            let places: Vec<Option<u64>> = list
                .sequence_values::<Value>()
                .map(|value| value.ok().and_then(|value| whole(&value, 1, most as u64)))
                .collect();
            let complete: Option<Vec<usize>> =
                places.into_iter().map(|place| place.map(|place| place as usize - 1)).collect();
            match complete {
                Some(mut places) if !places.is_empty() => {
                    places.sort_unstable();
                    places.dedup();
                    found.keys = places;
                }
                _ => self.problem(
                    &field,
                    format!("keys.{name} must be a list of numbers of arguments, from 1 to {most}"),
                ),
            }
        }
    }

    /// Reads the arguments of `new` with which an absent object is made.
    fn create(&mut self, create: &Table, new: Option<&Signature>) -> Option<Vec<Vec<u8>>> {
        let Some(new) = new else {
            self.problem("create", "create: the type has no method new".to_owned());
            return None;
        };
        let items = create.raw_len();
        let text = |value: &Value| match value {
            Value::String(string) => Some(string.as_bytes().to_vec()),
            Value::Integer(_) | Value::Number(_) => {
                let mut out = Vec::new();
                let number = number(value).filter(|number| number.is_finite())?;
                cattlegrid_objects::push_float(&mut out, number);
                Some(out)
            }
            _ => None,
        };
        let mut arguments: Vec<Option<Vec<u8>>> = vec![None; items];
        for pair in create.pairs::<Value, Value>() {
            let Ok((key, value)) = pair else { continue };
            let place = match &key {
                Value::Integer(place) => usize::try_from(*place - 1).ok().filter(|place| *place < items),
                Value::String(name) => {
                    let name = name.to_string_lossy();
                    let place = new.list.iter().position(|(own, _)| *own == name);
                    if place.is_none() {
                        self.problem(
                            &format!("create.{name}"),
                            format!("create.{name}: new has no parameter {name}"),
                        );
                        return None;
                    }
                    place
                }
                _ => None,
            };
            let (Some(place), Some(text)) = (place, text(&value)) else {
                self.problem("create", "create: the arguments of new are strings and numbers".to_owned());
                return None;
            };
            if place >= arguments.len() {
                arguments.resize(place + 1, None);
            }
            arguments[place] = Some(text);
        }
        let given: Option<Vec<Vec<u8>>> = arguments.into_iter().collect();
        if given.is_none() {
            self.problem(
                "create",
                format!("create: new takes {}: none before the last may be left out", new.usage()),
            );
        }
        given
    }
}

/// The line of a field, or of the field that contains it, otherwise the end of the source, which returns it.
fn line_in(source: &SourceFile, bytecode: Option<&Bytecode>, field: &str) -> Option<usize> {
    line_of_field(source, field).or_else(|| bytecode?.end())
}

const NAMES: &str = "1 to 16 lower case letters, digits and _, the first one a letter";

fn is_name(name: &str) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_lowercase();
    name.len() <= NAME_MAX
        && name.as_bytes().first().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(&byte) || byte.is_ascii_digit() || byte == b'_')
}

/// A whole number within these bounds.
fn whole(value: &Value, least: u64, most: u64) -> Option<u64> {
    let number = number(value)?;
    (number.fract() == 0.0 && number >= least as f64 && number <= most as f64).then_some(number as u64)
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}
