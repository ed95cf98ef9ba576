//! The types of a loaded directory, as a [`Host`].
//!
//! # Invariants
//! * The types do not change after they are loaded; threads share only the counts of breaches.

use std::sync::atomic::{AtomicU64, Ordering};

use cattlegrid_objects::{Host, HostType, HostUsage, ScriptCall, ScriptResult, ScriptWorld, TypeHandle};

use crate::breaches::Breaches;
use crate::call;
use crate::limits::Limits;
use crate::names::Names;
use crate::usage::Usage;
use crate::vm::Program;
use crate::watchdog;

/// Types written in Luau, made by [`Scripts::load`].
#[derive(Debug)]
pub struct Scripts {
    /// The number, unique in the process.
    pub(crate) number: u64,
    pub(crate) program: Program,
    pub(crate) limits: Limits,
    pub(crate) types: Vec<HostType>,
    /// The definition of each of `types`.
    pub(crate) definitions: Vec<TypeDefinition>,
    pub(crate) digest: u64,
    pub(crate) usage: Usage,
}

/// The properties of a type that the engine does not need to know.
#[derive(Debug)]
pub(crate) struct TypeDefinition {
    /// Keeps the numbers of the type.
    pub(crate) _defined: TypeHandle,
    /// The version with which states are written.
    pub(crate) version: u16,
    /// Whether `new` does not replace an object.
    pub(crate) create_only: bool,
    /// The position of `new` among the methods.
    pub(crate) new: Option<usize>,
    pub(crate) names: &'static Names,
    pub(crate) methods: Vec<MethodState>,
}

/// The counts of a method.
#[derive(Debug, Default)]
pub(crate) struct MethodState {
    pub(crate) breaches: Breaches,
    /// The Unix second, from 1, in which an error was last logged.
    pub(crate) logged_s: AtomicU64,
}

impl Scripts {
    /// The number for the next types.
    pub(crate) fn next_number() -> u64 {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        NUMBERS.fetch_add(1, Ordering::Relaxed)
    }

    /// The limits of a call.
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

    fn call(&self, call: &ScriptCall<'_>, world: &mut dyn ScriptWorld, out: &mut Vec<u8>) -> ScriptResult {
        call::run(self, call, world, out)
    }
}
