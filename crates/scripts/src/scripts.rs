//! Types of a directory that was loaded: a [`Host`].
//!
//! # Invariants
//! * It is not changed after it was loaded; what threads share of it are counts of breaches.

use std::sync::atomic::{AtomicU64, Ordering};

use cattlegrid_objects::{Host, HostType, HostUsage, ScriptCall, ScriptDone, TypeHandle, World};

use crate::breaches::Breaches;
use crate::call;
use crate::limits::Limits;
use crate::names::Names;
use crate::usage::Usage;
use crate::vm::Program;
use crate::watchdog;

/// Types written in Luau: [`Scripts::load`] makes them.
#[derive(Debug)]
pub struct Scripts {
    /// Another one for each of the process.
    pub(crate) number: u64,
    pub(crate) program: Program,
    pub(crate) limits: Limits,
    pub(crate) types: Vec<HostType>,
    /// Of each of `types`.
    pub(crate) definitions: Vec<Definition>,
    pub(crate) digest: u64,
    pub(crate) usage: Usage,
}

/// What a type is besides what the engine has to know.
#[derive(Debug)]
pub(crate) struct Definition {
    /// Keeps the type's numbers.
    pub(crate) _defined: TypeHandle,
    /// The version that its states are written with.
    pub(crate) version: u16,
    /// `new` does not replace an object.
    pub(crate) create_only: bool,
    /// The place of `new` among the methods.
    pub(crate) new: Option<usize>,
    pub(crate) names: &'static Names,
    pub(crate) methods: Vec<MethodState>,
}

/// What is counted about a method.
#[derive(Debug, Default)]
pub(crate) struct MethodState {
    pub(crate) breaches: Breaches,
    /// The second of the Unix time, from 1, in which an error was logged last.
    pub(crate) logged_s: AtomicU64,
}

impl Scripts {
    /// The number of the next one.
    pub(crate) fn next_number() -> u64 {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        NUMBERS.fetch_add(1, Ordering::Relaxed)
    }

    /// How much a call may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl Host for Scripts {
    fn types(&self) -> &[HostType] {
        &self.types
    }

    fn digest(&self) -> u64 {
        self.digest
    }

    fn usage(&self) -> HostUsage {
        let methods = self.definitions.iter().flat_map(|definition| &definition.methods);
        let disabled = methods.filter(|method| method.breaches.is_disabled()).count() as u64;
        let (vms, vm_bytes) = self.usage.sum();
        HostUsage { vms, vm_bytes, disabled }
    }

    fn rest(&self) {
        watchdog::rest();
    }

    fn call(&self, call: &ScriptCall<'_>, world: &mut dyn World, out: &mut Vec<u8>) -> ScriptDone {
        call::run(self, call, world, out)
    }
}
