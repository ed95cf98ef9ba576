//! Types of users' own without scripts.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use cattlegrid_objects::{
    Host, HostType, MethodDefinition, ScriptCall, ScriptMethod, ScriptOutcome, ScriptResult, ScriptWorld,
    TypeSettings, define,
};

/// Types whose methods answer nothing.
#[derive(Debug)]
pub(crate) struct Fake(pub(crate) Vec<HostType>);

impl Host for Fake {
    fn types(&self) -> &[HostType] {
        &self.0
    }

    fn digest(&self) -> u64 {
        0
    }

    fn call(&self, _: &ScriptCall<'_>, _: &mut dyn ScriptWorld, _: &mut Vec<u8>) -> ScriptResult {
        ScriptResult { outcome: ScriptOutcome::Miss, change: None, expires_ms: None, after: Vec::new() }
    }
}

/// A type with these methods; `new` runs without an object.
pub(crate) fn host_type(name: &str, methods: &[&str]) -> HostType {
    let definitions: Vec<MethodDefinition> = methods
        .iter()
        .map(|name| MethodDefinition {
            name: (*name).to_owned(),
            arguments: (0, 1),
            usage: "[n]".to_owned(),
            runs_absent: *name == "new",
        })
        .collect();
    HostType {
        object_type: define(name, &definitions).unwrap().forever(),
        settings: TypeSettings::new(name),
        version: 1,
        migrates: false,
        methods: vec![ScriptMethod { reads: false, keys: Vec::new() }; methods.len()],
    }
}
