//! The execution of a call: decode the state, run the method, encode the state, and write the reply.
//!
//! ```text
//!   plain ──decode──▶ table ──migrate──▶ method(self, arguments) ──▶ value ──reply──▶ out
//!                        └───────────────────┴──encode──▶ plain: compared with what it was
//! ```
//! # Invariants
//! * A call that fails changes nothing: its changes are dropped here, except for its events and log lines.
//! * After a call that exceeded a limit, or in which the library panicked, the VM is not used again.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cattlegrid_objects::{
    FollowUp, Method, NewState, ObjectMoved, ScriptCall, ScriptMethod, ScriptMethodId, ScriptOutcome,
    ScriptResult, ScriptWorld,
};
use mlua::{Function, MultiValue, Table, Value};

use crate::current::{self, CallEffects, CurrentCall};
use crate::library::Fail;
use crate::library::effects::SCRIPT_DISABLED;
use crate::limits::Breach;
use crate::raw::keys::KeyNumbers;
use crate::raw::run::{self, RunResult, Task};
use crate::scripts::{Scripts, TypeDefinition};
use crate::state::StateFields;
use crate::state::format::StateReader;
use crate::vm::{LoadError, Vm, a_kind};
use crate::{raw_call, reply, state, texts, threads};

/// The longest text of an error, in bytes.
const ERROR_MAX: usize = 500;

thread_local! {
    /// The number of the thread's last call.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// A VM with the functions of all methods.
#[derive(Debug)]
pub(crate) struct BoundVm {
    pub(crate) vm: Vm,
    /// The functions of each type.
    pub(crate) types: Vec<TypeFunctions>,
    /// The memory of the VM in bytes, for statistics.
    pub(crate) bytes: Arc<AtomicU64>,
    /// Whether the VM has run a call.
    pub(crate) has_run: Cell<bool>,
}

/// The functions of a type's source.
#[derive(Debug)]
pub(crate) struct TypeFunctions {
    /// The function of each method.
    pub(crate) methods: Vec<Function>,
    /// The function that runs a whole call, for each method: [`run::bind`].
    pub(crate) whole: Vec<Function>,
    /// The names of the fields of its objects.
    pub(crate) keys: KeyNumbers,
    pub(crate) migrate: Option<Function>,
}

/// Why a call has no reply of its own.
enum CallFailure {
    /// There is no object, and the call does not make one.
    Absent,
    /// `new` has refused to make an object.
    Refused,
    /// A mistake of the caller.
    Client(String),
    /// An error of the script.
    Script(String),
    Breach(Breach),
    Moved,
}

/// Runs a call. Bytes appended to `out` stay only if the outcome is a value.
pub(crate) fn run(
    scripts: &Scripts,
    call: &ScriptCall<'_>,
    world: &mut dyn ScriptWorld,
    out: &mut Vec<u8>,
) -> ScriptResult {
    let from = out.len();
    let done = match call.method {
        ScriptMethodId::Own(place) => own(scripts, call, place, world, out),
        ScriptMethodId::Dump => dump(scripts, call, world, out),
    };
    if !matches!(done.outcome, ScriptOutcome::Value { .. }) {
        out.truncate(from);
    }
    done
}

fn dump(
    scripts: &Scripts,
    call: &ScriptCall<'_>,
    world: &mut dyn ScriptWorld,
    out: &mut Vec<u8>,
) -> ScriptResult {
    let Some(plain) = call.own else { return done(ScriptOutcome::Miss) };
    let names = scripts.definitions[call.object_type].names;
    done(match crate::dump::dump(plain, names, world, call.settings.result_max, out) {
        Ok(true) => ScriptOutcome::Value { flags: call.settings.json_flags },
        Ok(false) => ScriptOutcome::Error("SERVER_ERROR result too large".to_owned()),
        Err(ObjectMoved) => ScriptOutcome::Moved,
    })
}

fn own(
    scripts: &Scripts,
    call: &ScriptCall<'_>,
    place: usize,
    world: &mut dyn ScriptWorld,
    out: &mut Vec<u8>,
) -> ScriptResult {
    let from = out.len();
    let host_type = &scripts.types[call.object_type];
    let definition = &scripts.definitions[call.object_type];
    let method = &host_type.object_type.methods[place];
    let name = MethodName { type_name: host_type.object_type.name, method: method.name };
    if definition.methods[place].breaches.is_disabled() {
        return done(ScriptOutcome::Error(format!("SERVER_ERROR script disabled: {name}")));
    }
    if let Err(text) = check_count(method, call.arguments.len()) {
        return done(ScriptOutcome::Error(format!("CLIENT_ERROR {name}: {text}")));
    }
    let is_made = call.own.is_none() && call.own_settings.create.is_some();
    if let Some(new) = definition.new.filter(|new| is_made && definition.methods[*new].breaches.is_disabled())
    {
        let name = MethodName { method: host_type.object_type.methods[new].name, ..name };
        return done(ScriptOutcome::Error(format!("SERVER_ERROR script disabled: {name}")));
    }
    let about = &host_type.methods[place];
    let attempt = CallAttempt { scripts, definition, about, place, call };
    let mut tried = attempt.run(world, out);
    if let Ok(AttemptResult { ended: Err(CallFailure::Breach(Breach::Memory)), had_run: true, .. }) = tried {
        // The cause may be memory that other calls have left in the VM, so the call is repeated in a new VM.
        out.truncate(from);
        tried = attempt.run(world, out);
    }
    let AttemptResult { ended, mut written, runs, .. } = match tried {
        Ok(tried) => tried,
        Err(LoadError { error, .. }) => {
            return done(ScriptOutcome::Error(format!(
                "SERVER_ERROR script {name}: {}",
                one_line(&text_of(&error))
            )));
        }
    };
    let failure = match ended {
        Ok(MethodResult { reply, plain }) => {
            let changes = plain.is_some() || !written.fields.is_empty() || !written.tags.is_empty();
            let change = changes.then(|| {
                let plain = plain.or_else(|| call.own.map(<[u8]>::to_vec)).unwrap_or_default();
                Box::new(NewState { plain, fields: written.fields, tags: written.tags })
            });
            let (expires_ms, after) = (written.expires_ms, written.after);
            return ScriptResult { outcome: reply, change, expires_ms, after };
        }
        Err(failure) => failure,
    };
    written.after.retain(|after| matches!(after, FollowUp::Event { .. } | FollowUp::Log(_)));
    let mut after = written.after;
    let outcome = match failure {
        CallFailure::Moved => return done(ScriptOutcome::Moved),
        CallFailure::Absent => compat(call, b"ERROR_CACHE_MISS", out),
        CallFailure::Refused => compat(call, b"NOT_CREATED", out),
        CallFailure::Client(text) => {
            ScriptOutcome::Error(format!("CLIENT_ERROR {name}: {}", one_line(&text)))
        }
        CallFailure::Script(text) => {
            let text = one_line(&text);
            log(definition, place, call, &name, &text, &mut after);
            ScriptOutcome::Error(format!("SERVER_ERROR script {name}: {text}"))
        }
        CallFailure::Breach(breach) => {
            let text = breach.text(&scripts.limits);
            // `create` may have run `new`.
            let place = runs;
            let name = MethodName { method: host_type.object_type.methods[place].name, ..name };
            if definition.methods[place].breaches.record(call.now_ms) {
                disabled(&name, &text, &mut after);
            } else {
                log(definition, place, call, &name, &text, &mut after);
            }
            ScriptOutcome::Error(format!("SERVER_ERROR script {name}: {text}"))
        }
    };
    ScriptResult { outcome, change: None, expires_ms: None, after }
}

/// A call of a method that is not disabled.
struct CallAttempt<'a> {
    scripts: &'a Scripts,
    definition: &'a TypeDefinition,
    about: &'a ScriptMethod,
    place: usize,
    call: &'a ScriptCall<'a>,
}

/// The outcome of an attempt.
struct AttemptResult {
    ended: Result<MethodResult, CallFailure>,
    written: CallEffects,
    /// The position of the method that ran last.
    runs: usize,
    /// Whether the VM had run other calls before.
    had_run: bool,
}

impl CallAttempt<'_> {
    /// Runs the call in the thread's VM.
    ///
    /// # Errors
    /// The VM cannot be made.
    fn run(&self, world: &mut dyn ScriptWorld, out: &mut Vec<u8>) -> Result<AttemptResult, LoadError> {
        let &Self { scripts, definition, about, place, call } = self;
        let number = NUMBER.get() + 1;
        NUMBER.set(number);
        let bound = threads::vm(scripts.number, || bind(scripts))?;
        let had_run = bound.has_run.replace(true);
        let runs = Cell::new(place);
        let run = MethodRun { scripts, bound: &bound, definition, about, place, call, number, runs };
        let mut current = CurrentCall { call, world, number, written: CallEffects::default() };
        let (ran, breach) = current::enter(&mut current, || {
            raw_call::timed(bound.vm.slot(), number, || cattlegrid_panic::guarded(|| run.run(out)))
        });
        let written = current.written;
        // A coroutine of the script may have hidden a panic as an error.
        let ran = ran.ok().filter(|_| !current::has_panicked());
        let is_broken = ran.is_none();
        let ended = match (ran, breach) {
            (None, _) => Err(CallFailure::Script("internal error".to_owned())),
            (Some(_), _) if written.has_moved => Err(CallFailure::Moved),
            (Some(_), Some(Breach::Memory)) => Err(CallFailure::Breach(Breach::Memory)),
            (Some(Err(_)), Some(Breach::Time)) => Err(CallFailure::Breach(Breach::Time)),
            (Some(ended), _) => ended,
        };
        let is_lost = is_broken || matches!(ended, Err(CallFailure::Breach(_)));
        match if is_lost { None } else { bound.vm.collect_garbage() } {
            Some(bytes) => bound.bytes.store(bytes as u64, Ordering::Relaxed),
            None => threads::forget(scripts.number),
        }
        Ok(AttemptResult { ended, written, runs: run.runs.get(), had_run })
    }
}

/// The result of a call that has only a reply.
fn done(outcome: ScriptOutcome) -> ScriptResult {
    ScriptResult { outcome, change: None, expires_ms: None, after: Vec::new() }
}

/// A miss, or Cacheismo's text.
fn compat(call: &ScriptCall<'_>, text: &[u8], out: &mut Vec<u8>) -> ScriptOutcome {
    if call.settings.compat {
        out.extend_from_slice(text);
        ScriptOutcome::Value { flags: 0 }
    } else {
        ScriptOutcome::Miss
    }
}

/// Logs an error; for each method once in a second, by the time of calls.
fn log(
    definition: &TypeDefinition,
    place: usize,
    call: &ScriptCall<'_>,
    name: &MethodName<'_>,
    text: &str,
    after: &mut Vec<FollowUp>,
) {
    let second = call.now_ms / 1000 + 1;
    if definition.methods[place].logged_s.swap(second, Ordering::Relaxed) != second {
        after.push(FollowUp::Log(format!("script {name}: {text} (seed of math.random: {})", call.random)));
    }
}

fn disabled(name: &MethodName<'_>, text: &str, after: &mut Vec<FollowUp>) {
    after.push(FollowUp::Log(format!("script {name}: {text}: disabled until objects are loaded again")));
    // Neither names nor the text of a breach contain characters that JSON escapes.
    let json = format!(r#"{{"type":"{}","method":"{}","reason":"{text}"}}"#, name.type_name, name.method);
    after.push(FollowUp::Event { name: SCRIPT_DISABLED.to_owned(), json });
}

/// A new VM with the functions of all methods.
///
/// # Errors
/// A source fails.
pub(crate) fn bind(scripts: &Scripts) -> Result<BoundVm, LoadError> {
    let vm = Vm::open(&scripts.program, &scripts.limits)?;
    let failed = |error| LoadError { file: String::new(), error };
    let types = vm.returned.iter().zip(&scripts.types).map(|(table, host_type)| {
        let read: Option<Table> = match table.raw_get("read")? {
            Value::Table(read) => Some(read),
            _ => None,
        };
        let function = |(method, about): (&Method, &ScriptMethod)| match (&read, about.reads) {
            (Some(read), true) => read.raw_get(method.name),
            _ => table.raw_get(method.name),
        };
        let methods: mlua::Result<Vec<Function>> =
            host_type.object_type.methods.iter().zip(&host_type.methods).map(function).collect();
        let methods = methods?;
        let keys = KeyNumbers::new(&vm.lua)?;
        let whole: mlua::Result<_> = methods.iter().map(|method| run::bind(&vm.lua, method, &keys)).collect();
        Ok(TypeFunctions { methods, whole: whole?, keys, migrate: table.raw_get("migrate")? })
    });
    let types = types.collect::<mlua::Result<_>>().map_err(failed)?;
    let bytes = scripts.usage.begin(vm.lua.used_memory());
    Ok(BoundVm { vm, types, bytes, has_run: Cell::new(false) })
}

/// Checks the number of arguments; the error is `takes limit window [n]`, as in
/// [`cattlegrid_objects::Registry`] for shipped types.
fn check_count(method: &Method, count: usize) -> Result<(), String> {
    let (least, most) = method.arguments;
    match (least..=most).contains(&count) {
        true => Ok(()),
        false if method.usage.is_empty() => Err("takes no arguments".to_owned()),
        false => Err(format!("takes {}", method.usage)),
    }
}

struct MethodRun<'a> {
    scripts: &'a Scripts,
    bound: &'a BoundVm,
    definition: &'a TypeDefinition,
    about: &'a ScriptMethod,
    place: usize,
    call: &'a ScriptCall<'a>,
    number: u64,
    /// The position of the method that runs.
    runs: Cell<usize>,
}

/// The result of a method.
struct MethodResult {
    reply: ScriptOutcome,
    /// The new plain state; None: it is unchanged.
    plain: Option<Vec<u8>>,
}

impl MethodRun<'_> {
    fn run(&self, out: &mut Vec<u8>) -> Result<MethodResult, CallFailure> {
        if self.definition.new == Some(self.place) {
            if self.call.replaces && self.definition.create_only {
                return Err(CallFailure::Client("the object exists".to_owned()));
            }
            let arguments = self.strings(self.call.arguments.iter())?;
            let table = self.new_object(self.place, arguments)?;
            let plain = self.encode(&table)?;
            out.extend_from_slice(b"CREATED");
            return Ok(MethodResult { reply: ScriptOutcome::Value { flags: 0 }, plain: Some(plain) });
        }
        let mut plain = Vec::new();
        let (table, value, before) = match self.at_once(&mut plain, out)? {
            Some(RunResult::Whole { outcome, fields }) => {
                self.drop_unreferenced(&fields);
                return self.ended(outcome, plain, None);
            }
            Some(RunResult::Rest { table, value }) => (table, value, None),
            None => self.by_steps()?,
        };
        let from = out.len();
        let reply = reply::reply(&value, self.call.settings.json_flags, out).map_err(CallFailure::Script)?;
        if out.len() - from > self.call.settings.result_max {
            return Err(CallFailure::Script("result too large".to_owned()));
        }
        let plain = self.encode(&table)?;
        self.ended(reply, plain, before)
    }

    /// Runs a method as one protected call; None: the call needs the separate steps.
    fn at_once(&self, plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<Option<RunResult>, CallFailure> {
        let Some(own) = self.call.own.filter(|_| self.about.keys.is_empty()) else { return Ok(None) };
        let (head, reader) = StateReader::new(own).map_err(|broken| failure(&broken.into()))?;
        let (definition, functions) = (self.definition, self.functions());
        if head.version != definition.version {
            return Ok(None);
        }
        let task = Task {
            head,
            reader,
            names: definition.names,
            call_number: self.number,
            arguments: self.call.arguments,
            version: definition.version,
            state_max: self.scripts.limits.state_max,
            result_max: self.call.settings.result_max,
        };
        let ended = run::run(&functions.whole[self.place], &functions.keys, task, plain, out);
        ended.map(Some).map_err(|error| failure(&error))
    }

    /// Makes the object's table and the arguments, and runs the method. Returns the table, the method's
    /// value, and for a reading method the state that `new` or `migrate` has made.
    fn by_steps(&self) -> Result<(Table, Value, Option<CreatedState>), CallFailure> {
        let table = match self.call.own {
            Some(plain) => self.decoded(plain, 0)?,
            None => self.created()?,
        };
        // Changes that `new` or `migrate` makes before a reading method are not changes of the method. Other
        // objects are made after this, since encoding this one drops the members of collections that are not
        // its own.
        let made = self.about.reads && (self.call.own.is_none() || self.functions().migrate.is_some());
        let before = if made { Some((self.encode(&table)?, marks())) } else { None };
        let mut arguments = self.arguments()?;
        arguments.push_front(Value::Table(table.clone()));
        let function = &self.functions().methods[self.place];
        let value = function.call(arguments).map_err(|error| failure(&error))?;
        Ok((table, value, before))
    }

    /// The result of a method that leaves this plain state.
    fn ended(
        &self,
        reply: ScriptOutcome,
        plain: Vec<u8>,
        before: Option<CreatedState>,
    ) -> Result<MethodResult, CallFailure> {
        if self.about.reads {
            let is_unchanged = match before {
                Some((before, marks_before)) => before == plain && marks_before == marks(),
                None => self.is_unchanged(&plain)?,
            };
            return if is_unchanged {
                if self.call.own.is_some() {
                    drop_changes();
                }
                // An object that `create` has made stays.
                Ok(MethodResult { reply, plain: self.call.own.is_none().then_some(plain) })
            } else {
                let method = self.scripts.types[self.call.object_type].object_type.methods[self.place].name;
                Err(CallFailure::Script(format!("read.{method} changed its object")))
            };
        }
        let is_same = self.call.own == Some(&*plain);
        Ok(MethodResult { reply, plain: (!is_same).then_some(plain) })
    }

    fn functions(&self) -> &TypeFunctions {
        &self.bound.types[self.call.object_type]
    }

    /// The table of a plain state, migrated to the source's version.
    fn decoded(&self, plain: &[u8], object: u8) -> Result<Table, CallFailure> {
        let (version, table) = self.decode(plain, object)?;
        let own = self.definition.version;
        if version == own {
            return Ok(table);
        }
        let Some(migrate) = &self.functions().migrate else {
            let text = format!(
                "the object is of version {version}, and version {own} has no migrate: drop it, or make it anew"
            );
            return Err(CallFailure::Script(text));
        };
        match migrate.call((table, version)).map_err(|error| failure(&error))? {
            Value::Table(table) => Ok(table),
            other => {
                Err(CallFailure::Script(format!("migrate returns {} instead of a table", a_kind(&other))))
            }
        }
    }

    fn decode(&self, plain: &[u8], object: u8) -> Result<(u16, Table), CallFailure> {
        state::decode(&self.bound.vm.lua, plain, self.definition.names, self.number, object)
            .map_err(|error| failure(&error))
    }

    /// The table of an object that `create` makes.
    fn created(&self) -> Result<Table, CallFailure> {
        let (Some(create), Some(new)) = (&self.call.own_settings.create, self.definition.new) else {
            return Err(CallFailure::Absent);
        };
        let method = &self.scripts.types[self.call.object_type].object_type.methods[new];
        check_count(method, create.len())
            .map_err(|text| CallFailure::Script(format!("create: new {text}")))?;
        let arguments = self.strings(create.iter().map(Vec::as_slice))?;
        self.runs.set(new);
        let made = self.new_object(new, arguments).map_err(|failure| match failure {
            CallFailure::Refused => CallFailure::Absent,
            other => other,
        })?;
        self.runs.set(self.place);
        Ok(made)
    }

    fn new_object(&self, place: usize, arguments: MultiValue) -> Result<Table, CallFailure> {
        match self.functions().methods[place].call(arguments).map_err(|error| failure(&error))? {
            Value::Table(table) => Ok(table),
            Value::Nil => Err(CallFailure::Refused),
            other => Err(CallFailure::Script(format!("new returns {} instead of a table", a_kind(&other)))),
        }
    }

    fn strings<'s>(&self, list: impl Iterator<Item = &'s [u8]>) -> Result<MultiValue, CallFailure> {
        let string = |text| Ok(Value::String(self.bound.vm.lua.create_string(text)?));
        list.map(string).collect::<mlua::Result<_>>().map_err(|error| failure(&error))
    }

    /// The arguments after the object; a key of an object becomes that object, or nil.
    fn arguments(&self) -> Result<MultiValue, CallFailure> {
        let mut values = self.strings(self.call.arguments.iter())?;
        for (number, place) in self.about.keys.iter().enumerate() {
            let (Some(value), Some(other)) = (values.get_mut(*place), self.call.others.get(number)) else {
                continue;
            };
            *value = match other {
                Some(plain) => {
                    let table = without_requests(|| self.decoded(plain, number as u8 + 1))?;
                    freeze(&table).map_err(|error| failure(&error))?;
                    Value::Table(table)
                }
                None => Value::Nil,
            };
        }
        Ok(values)
    }

    fn encode(&self, table: &Table) -> Result<Vec<u8>, CallFailure> {
        let (mut plain, definition) = (Vec::new(), self.definition);
        let state_max = self.scripts.limits.state_max;
        let lua = &self.bound.vm.lua;
        let fields = state::encode(lua, table, definition.version, definition.names, state_max, &mut plain)
            .map_err(CallFailure::Script)?;
        self.drop_unreferenced(&fields);
        Ok(plain)
    }

    /// Drops the members of fields that the new state does not refer to.
    fn drop_unreferenced(&self, fields: &StateFields) {
        let only_reads = self.about.reads && self.call.own.is_some();
        let has_fields = || {
            let had = || self.call.own.is_some_and(|own| !state::fields(own).list.is_empty());
            !only_reads && (!fields.list.is_empty() || had())
        };
        current::with(|current| {
            let pending = &mut current.written.fields;
            // A reading method may have made a field for its own use.
            if !pending.is_empty() || has_fields() {
                let kept: Vec<u8> = fields.list.iter().map(|(number, _)| *number).collect();
                pending.keep_fields(&kept);
            }
        });
    }

    /// Whether a reading method has left its object unchanged.
    fn is_unchanged(&self, plain: &[u8]) -> Result<bool, CallFailure> {
        if marks() != SideWrites::default() {
            return Ok(false);
        }
        // A state from an older source, or from before a name was known, is longer.
        match self.call.own {
            None => Ok(true),
            Some(own) if own == plain => Ok(true),
            Some(own) => Ok(self.encode(&self.decoded(own, 0)?)? == plain),
        }
    }
}

/// The state that `new` or `migrate` has made, and the other changes.
type CreatedState = (Vec<u8>, SideWrites);

/// The changes of a call to its object besides the plain state.
#[derive(Debug, Default, PartialEq, Eq)]
struct SideWrites {
    /// [`cattlegrid_objects::PendingChanges::digest`].
    changes: u64,
    tags: usize,
    #[expect(clippy::option_option, reason = "as in `CallEffects`: none, or another end")]
    expires_ms: Option<Option<u64>>,
    once: bool,
}

fn marks() -> SideWrites {
    let marks = current::with(|current| {
        let CallEffects { fields, tags, expires_ms, once, .. } = &current.written;
        SideWrites {
            changes: fields.digest(),
            tags: tags.len(),
            expires_ms: *expires_ms,
            once: once.is_some(),
        }
    });
    marks.unwrap_or_default()
}

/// Runs `migrate` for another object that this call reads. Its requests are dropped, except for members of
/// collections that it makes.
fn without_requests<R>(migrated: impl FnOnce() -> R) -> R {
    let own = current::with(|current| {
        let written = &mut current.written;
        let CallEffects { tags, expires_ms, after, once, .. } = written;
        (std::mem::take(tags), expires_ms.take(), std::mem::take(after), once.take())
    });
    let result = migrated();
    if let Some(own) = own {
        current::with(|current| {
            let written = &mut current.written;
            (written.tags, written.expires_ms, written.after, written.once) = own;
        });
    }
    result
}

/// Drops the changes of a reading method.
fn drop_changes() {
    current::with(|current| {
        let written = &mut current.written;
        (written.fields, written.tags, written.expires_ms) = Default::default();
    });
}

/// The failure of a call with this error of the VM.
fn failure(error: &mlua::Error) -> CallFailure {
    if let Some(Fail(text)) = error.downcast_ref::<Fail>() {
        return CallFailure::Client(text.clone());
    }
    if is_memory(error) {
        return CallFailure::Breach(Breach::Memory);
    }
    let text = text_of(error);
    let caught = current::with(|current| current.written.caught.take()).flatten();
    match caught.filter(|caught| texts::without_places(&text) == texts::without_places(caught)) {
        Some(again) => CallFailure::Client(again),
        None => CallFailure::Script(text),
    }
}

/// Makes another object read-only.
fn freeze(table: &Table) -> mlua::Result<()> {
    for pair in table.pairs::<Value, Value>() {
        if let (_, Value::Table(table)) = pair? {
            freeze(&table)?;
        }
    }
    table.set_readonly(true);
    Ok(())
}

/// Whether an error means that memory was short.
pub(crate) fn is_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } | mlua::Error::BadArgument { cause, .. } => is_memory(cause),
        _ => false,
    }
}

/// The text of an error without the traceback; for an error without a text, the name of its type.
pub(crate) fn text_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, traceback } => {
            let text = text_of(cause);
            match traceback
                .lines()
                .find_map(|frame| texts::place(frame.trim_start()))
                .filter(|_| texts::place(&text).is_none())
            {
                Some(at) => format!("{at}: {text}"),
                None => text,
            }
        }
        mlua::Error::RuntimeError(text) | mlua::Error::SyntaxError { message: text, .. } => {
            let (text, stack) = text.rsplit_once("\nstack traceback:\n").unwrap_or((text, ""));
            texts::with_place(texts::without_address(text), stack)
        }
        error => error.to_string(),
    }
}

/// A text as a part of a line: control characters become blanks, and it is cut to [`ERROR_MAX`] bytes.
fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let end = (0..=ERROR_MAX).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
    line.truncate(end);
    line
}

/// The name of a method: `quota.addandcheck`.
#[derive(Clone, Copy)]
struct MethodName<'a> {
    type_name: &'a str,
    method: &'a str,
}

impl std::fmt::Display for MethodName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.type_name, self.method)
    }
}
