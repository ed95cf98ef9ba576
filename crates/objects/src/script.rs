//! Types of users' own: the interface between the engine and the host that runs their methods.
//!
//! ```text
//!   engine: copy the plain state ──▶ Host::call, without a lock ──▶ engine: Registry::commit, if unchanged
//!                                         └─ ScriptWorld: members of fields, plain values
//! ```
//! A state is plain values, which the host encodes, and fields: collections of native types, whose members
//! are not decoded. `fields.rs` describes how both are stored in an object.
//!
//! # Invariants
//! * A call takes effect at its commit or not at all: until then its changes are in [`NewState`] and
//!   [`FollowUp`].

use std::fmt::Debug;

use crate::arguments::Arguments;
use crate::calendar::Zone;
use crate::fields::PendingChanges;
use crate::method::ObjectType;
use crate::object::StateView;
use crate::settings::{Settings, TypeSettings};

/// The interface of a host, which runs the methods of users' own types.
pub trait Host: Debug + Send + Sync {
    /// The host's types, in the order of their names.
    fn types(&self) -> &[HostType];

    /// A number that changes with the sources and limits: hosts with the same number behave alike.
    fn digest(&self) -> u64;

    /// Figures about the host, for statistics.
    fn usage(&self) -> HostUsage {
        HostUsage::default()
    }

    /// Ends the threads that the host has started, before the process forks. The next call starts them again.
    /// No call may run meanwhile.
    fn rest(&self) {}

    /// Runs a method on the calling thread, for at most its time limit. The value of the reply is appended to
    /// `out`.
    fn call(&self, call: &ScriptCall<'_>, world: &mut dyn ScriptWorld, out: &mut Vec<u8>) -> ScriptResult;
}

/// Figures about a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostUsage {
    /// The number of VMs; each thread that has called a method has one.
    pub vms: u64,
    /// The memory of the VMs in bytes, as of the last call of each.
    pub vm_bytes: u64,
    /// The number of methods that are switched off since they have exceeded their limits too often.
    pub disabled: u64,
}

/// A type of users' own.
#[derive(Debug, Clone)]
pub struct HostType {
    /// The name, number and methods, made by [`crate::define`].
    pub object_type: &'static ObjectType,
    /// The settings in the source, which the rule file may override.
    pub settings: TypeSettings,
    /// The version with which states are written, from 1.
    pub version: u16,
    /// Whether states of other versions can be read too.
    pub migrates: bool,
    /// The properties of each method in `object_type.methods`.
    pub methods: Vec<ScriptMethod>,
}

/// The properties of a host's method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptMethod {
    /// Whether the method never changes its object.
    pub reads: bool,
    /// The positions, from 0, of arguments that are keys of objects of the same type, which the method reads.
    pub keys: Vec<usize>,
}

/// A call of a host's method.
#[derive(Debug, Clone, Copy)]
pub struct ScriptCall<'a> {
    /// The position of the type in [`Host::types`].
    pub object_type: usize,
    /// The method.
    pub method: ScriptMethodId,
    /// The object's key.
    pub key: &'a [u8],
    /// The arguments after the object's key.
    pub arguments: &'a Arguments<'a>,
    /// The plain state. None: there is no object, or the method is `new`, which makes a new state.
    pub own: Option<&'a [u8]>,
    /// Whether the method is `new` and replaces an existing object.
    pub replaces: bool,
    /// The plain states of the objects of [`ScriptMethod::keys`], in their order. Arguments that were left
    /// out have no entry.
    pub others: &'a [Option<Vec<u8>>],
    /// The expiry of the object, Unix time in milliseconds; None: never.
    pub expires_ms: Option<u64>,
    /// The time of the call: Unix time in milliseconds.
    pub now_ms: u64,
    /// A number that differs in each call.
    pub random: u64,
    /// The settings of objects in the rule file.
    pub settings: &'a Settings,
    /// The settings of the type, from its source and the rule file.
    pub own_settings: &'a TypeSettings,
    /// The zone of `os.date` and of windows of time.
    pub zone: &'a Zone,
}

/// The function that a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptMethodId {
    /// The method at this position of `object_type.methods`.
    Own(usize),
    /// The state as JSON, with its fields; the object exists.
    Dump,
}

/// The data outside of its plain state that a running method can read.
pub trait ScriptWorld {
    /// Calls `read` once with an object of the call, which does not change meanwhile. `object`: 0 is the
    /// call's own, the next ones are [`ScriptCall::others`], from 1 on.
    ///
    /// # Errors
    /// [`ObjectMoved`]: the object has changed since the call began. The run then ends as
    /// [`ScriptOutcome::Moved`].
    fn read(&mut self, object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved>;

    /// Appends a plain value, and returns its client flags. None: a miss, which does not start a load.
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<u32>;

    /// Checks whether a [`FollowUp`] can be executed, as far as that is known in advance.
    ///
    /// # Errors
    /// The reason why it cannot.
    fn check(&self, after: &FollowUp) -> Result<(), String>;
}

/// A world without objects and values, in which every follow-up is possible.
#[derive(Debug)]
pub struct NoWorld;

impl ScriptWorld for NoWorld {
    fn read(&mut self, _object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        read(StateView::Absent);
        Ok(())
    }

    fn get(&mut self, _key: &[u8], _out: &mut Vec<u8>) -> Option<u32> {
        None
    }

    fn check(&self, _after: &FollowUp) -> Result<(), String> {
        Ok(())
    }
}

/// The object has changed since the call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectMoved;

/// The result of a call of a host's method.
#[derive(Debug)]
pub struct ScriptResult {
    /// The reply.
    pub outcome: ScriptOutcome,
    /// The new state; None: it is unchanged.
    pub change: Option<Box<NewState>>,
    /// The new expiry, as in [`crate::CallResult::expires_ms`].
    pub expires_ms: Option<Option<u64>>,
    /// The follow-ups of the call, in order. After an error, only events and log lines.
    pub after: Vec<FollowUp>,
}

/// The reply of a host's method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// The bytes appended to `out`, with these client flags.
    Value {
        /// Client flags.
        flags: u32,
    },
    /// A miss.
    Miss,
    /// The call failed and changes nothing; the error line without its end.
    Error(String),
    /// A read returned [`ObjectMoved`]: the call must be repeated.
    Moved,
}

/// The new state after a call.
#[derive(Debug, Default)]
pub struct NewState {
    /// The plain state.
    pub plain: Vec<u8>,
    /// The changes of fields.
    pub fields: PendingChanges,
    /// Names of tags that the object gets in addition to its own.
    pub tags: Vec<Vec<u8>>,
}

/// An action that follows a call once it has taken effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowUp {
    /// Store a plain value.
    Set {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// The time to live in seconds; 0: for ever.
        ttl_s: u32,
    },
    /// Invalidate a tag.
    Invalidate(Vec<u8>),
    /// Have a loader compute this key, in the background.
    Load(Vec<u8>),
    /// Send an event to watchers.
    Event {
        /// The name: letters, digits, `_`.
        name: String,
        /// The data in JSON.
        json: String,
    },
    /// Write a line to the server's log.
    Log(String),
}
