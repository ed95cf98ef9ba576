//! Types of users' own: what the engine asks of the host that runs their methods, and what a call leaves.
//!
//! ```text
//!   engine: copy the plain state ──▶ Host::call, without a lock ──▶ engine: Registry::commit, if the object is as it was
//!                                         └─ World: members of fields, plain values, read while it runs
//! ```
//! A state is plain values, written by the host, and fields: collections of native types, whose members are never
//! decoded. See `fields.rs` for how both are kept in an object.
//!
//! # Invariants
//! * A call takes effect at its commit or not at all: what it writes is kept in [`NewState`] and in [`After`] until then.

use std::fmt::Debug;

use crate::arguments::Arguments;
use crate::calendar::Zone;
use crate::fields::Pending;
use crate::method::ObjectType;
use crate::object::View;
use crate::settings::{Settings, TypeSettings};

/// What runs the methods of users' own types.
pub trait Host: Debug + Send + Sync {
    /// Its types, in the order of their names.
    fn types(&self) -> &[HostType];

    /// Another number for other sources or limits: hosts with the same number run alike.
    fn digest(&self) -> u64;

    /// What it keeps, and what it has switched off.
    fn usage(&self) -> HostUsage {
        HostUsage::default()
    }

    /// Ends the threads that it has started, before the process forks: the next call starts them again. No call may run
    /// meanwhile.
    fn rest(&self) {}

    /// Runs a method, on the calling thread, for as long as its limit of time. The value of the reply is appended to `out`.
    fn call(&self, call: &ScriptCall<'_>, world: &mut dyn World, out: &mut Vec<u8>) -> ScriptDone;
}

/// What a host keeps, and what it has switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostUsage {
    /// Machines that run methods, one for each thread that has called one.
    pub vms: u64,
    /// Memory that they take, in bytes, as of the last call of each.
    pub vm_bytes: u64,
    /// Methods that have exceeded their limits too often.
    pub disabled: u64,
}

/// A type of users' own.
#[derive(Debug, Clone)]
pub struct HostType {
    /// Its name, number and methods: made by [`crate::define`].
    pub object_type: &'static ObjectType,
    /// What its source says; the rule file may say otherwise.
    pub settings: TypeSettings,
    /// The version that its states are written with, from 1.
    pub version: u16,
    /// It reads states of other versions, too.
    pub migrates: bool,
    /// Of each of `object_type.methods`.
    pub methods: Vec<ScriptMethod>,
}

/// A method of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptMethod {
    /// It never changes its object.
    pub reads: bool,
    /// Places of arguments, from 0, that are keys of objects of the same type, which it reads.
    pub keys: Vec<usize>,
}

/// A call of a host's method.
#[derive(Debug, Clone, Copy)]
pub struct ScriptCall<'a> {
    /// The type's place among [`Host::types`].
    pub object_type: usize,
    /// The method.
    pub method: ScriptMethodId,
    /// The object's key.
    pub key: &'a [u8],
    /// After the object's key.
    pub arguments: &'a Arguments<'a>,
    /// The plain state; None: there is no object, or the method is `new`, of which a new one comes.
    pub own: Option<&'a [u8]>,
    /// The method is `new`, and there is an object, whose place the new one takes.
    pub replaces: bool,
    /// The plain states of the objects that [`ScriptMethod::keys`] name, in their order. Arguments that are left out name none.
    pub others: &'a [Option<Vec<u8>>],
    /// When the object `own` expires, Unix time in milliseconds; None: never.
    pub expires_ms: Option<u64>,
    /// The time of the call: milliseconds of the Unix time.
    pub now_ms: u64,
    /// Another number for each call.
    pub random: u64,
    /// What the rule file says.
    pub settings: &'a Settings,
    /// What the source and the rule file say about the type.
    pub own_settings: &'a TypeSettings,
    /// The zone of `os.date` and of windows of time.
    pub zone: &'a Zone,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptMethodId {
    /// The method at this place of `object_type.methods`.
    Own(usize),
    /// The state as JSON, fields included; there is an object.
    Dump,
}

/// What a running method reads outside of its plain state.
pub trait World {
    /// Calls `read` with an object of the call, once, while nothing changes it. `object`: 0 is its own, then
    /// [`ScriptCall::others`] from 1 on.
    ///
    /// # Errors
    /// [`Moved`]: it is not as it was when the call began. The run ends then, as [`ScriptOutcome::Moved`].
    fn read(&mut self, object: usize, read: &mut dyn FnMut(View<'_>)) -> Result<(), Moved>;

    /// Appends a plain value; its client flags. None: a miss, by which nothing is loaded.
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<u32>;

    /// Whether [`After`] can be done, as far as that can be told before.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, after: &After) -> Result<(), String>;
}

/// A world without objects and values, in which everything can be done.
#[derive(Debug)]
pub struct NoWorld;

impl World for NoWorld {
    fn read(&mut self, _object: usize, read: &mut dyn FnMut(View<'_>)) -> Result<(), Moved> {
        read(View::Absent);
        Ok(())
    }

    fn get(&mut self, _key: &[u8], _out: &mut Vec<u8>) -> Option<u32> {
        None
    }

    fn check(&self, _after: &After) -> Result<(), String> {
        Ok(())
    }
}

/// The object has changed since the call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved;

/// What a call of a host's method came to.
#[derive(Debug)]
pub struct ScriptDone {
    /// What it answers.
    pub outcome: ScriptOutcome,
    /// What becomes of the state; None: nothing.
    pub change: Option<Box<NewState>>,
    /// As [`crate::Done::expires_ms`].
    pub expires_ms: Option<Option<u64>>,
    /// What follows when the call has taken effect, in order. After an error, only events and lines of the log.
    pub after: Vec<After>,
}

/// What a host's method answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// The bytes appended to `out`, with these client flags.
    Value {
        /// Client flags.
        flags: u32,
    },
    /// A miss.
    Miss,
    /// A whole line without its end: the call failed, and changes nothing.
    Error(String),
    /// A read found that an object has [`Moved`]: the call must be made again.
    Moved,
}

/// The state after a call.
#[derive(Debug, Default)]
pub struct NewState {
    /// The plain state.
    pub plain: Vec<u8>,
    /// What changes in the fields.
    pub fields: Pending,
    /// Names of tags that the object gets besides those that it has.
    pub tags: Vec<Vec<u8>>,
}

/// What follows a call that has taken effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// A plain value is stored.
    Set {
        /// Its key.
        key: Vec<u8>,
        /// Its bytes.
        value: Vec<u8>,
        /// Seconds to live; 0: for ever.
        ttl_s: u32,
    },
    /// A tag is invalidated.
    Invalidate(Vec<u8>),
    /// A loader is to compute this key, in the background.
    Load(Vec<u8>),
    /// An event for watchers.
    Event {
        /// What it is about: letters, digits, `_`.
        name: String,
        /// In JSON.
        json: String,
    },
    /// A line of the server's log.
    Log(String),
}
