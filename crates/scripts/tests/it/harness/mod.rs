//! Calls of sources that are written down in a test.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it")]

pub mod stored;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::{
    Arguments, FollowUp, Host, ObjectMoved, ScriptCall, ScriptMethodId, ScriptOutcome, ScriptResult,
    ScriptWorld, Settings, StateView, TypeSettings, Zone,
};
use cattlegrid_scripts::{Limits, Problem, Scripts, SourceFile, Sources};

/// Plain values, and no objects. Reading the key `panic` panics.
#[derive(Debug, Default)]
pub struct Plain(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl ScriptWorld for Plain {
    fn read(&mut self, _object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        read(StateView::Absent);
        Ok(())
    }

    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<u32> {
        assert_ne!(key, b"panic");
        out.extend_from_slice(self.0.get(key)?);
        Some(0)
    }

    fn check(&self, _after: &FollowUp) -> Result<(), String> {
        Ok(())
    }
}

/// A type of this name.
pub fn source(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_owned(), path: PathBuf::from(format!("{name}.luau")), text: text.to_owned() }
}

/// One type, `t`.
pub fn sources(text: &str) -> Sources {
    Sources { types: vec![source("t", text)], ..Sources::default() }
}

/// Limits of calls that are not about time: the machine may be slow.
pub fn unhurried() -> Limits {
    Limits { time: Duration::from_secs(60), ..Limits::default() }
}

/// The problems of a source, as they are printed.
pub fn problems(text: &str) -> Vec<String> {
    match Scripts::load(&sources(text), &Limits::default()) {
        Ok((_, warnings)) => warnings.iter().map(Problem::to_string).collect(),
        Err(problems) => problems.iter().map(Problem::to_string).collect(),
    }
}

/// Scripts and one object.
#[derive(Debug)]
pub struct Bench {
    pub scripts: Arc<Scripts>,
    pub settings: Settings,
    pub zone: Zone,
    pub now_ms: u64,
    pub state: Option<Vec<u8>>,
    pub others: Vec<Option<Vec<u8>>>,
}

impl Bench {
    /// With the type `t`, whose calls may take long.
    pub fn new(text: &str) -> Self {
        Self::with(text, &unhurried())
    }

    pub fn with(text: &str, limits: &Limits) -> Self {
        Self::of(&sources(text), limits)
    }

    pub fn of(sources: &Sources, limits: &Limits) -> Self {
        let (scripts, _) = Scripts::load(sources, limits).unwrap_or_else(|problems| panic!("{problems:#?}"));
        Self::on(scripts)
    }

    pub fn on(scripts: Arc<Scripts>) -> Self {
        let now_ms = 1_700_000_000_000;
        Self {
            scripts,
            settings: Settings::default(),
            zone: Zone::UTC,
            now_ms,
            state: None,
            others: Vec::new(),
        }
    }

    /// Calls a method of `t`; the state is not changed.
    pub fn done(&self, method: ScriptMethodId, arguments: &[&[u8]], out: &mut Vec<u8>) -> ScriptResult {
        let own_settings: &TypeSettings = &self.scripts.types()[0].settings;
        let methods = self.scripts.types()[0].object_type.methods;
        let is_new = matches!(method, ScriptMethodId::Own(place) if methods[place].name == "new");
        let call = ScriptCall {
            object_type: 0,
            method,
            key: b"k",
            arguments: &Arguments::of(arguments.iter().copied()),
            own: self.state.as_deref().filter(|_| !is_new),
            replaces: is_new && self.state.is_some(),
            others: &self.others,
            expires_ms: None,
            now_ms: self.now_ms,
            random: 42,
            settings: &self.settings,
            own_settings,
            zone: &self.zone,
        };
        self.scripts.call(&call, &mut Plain::default(), out)
    }

    /// Calls `method:argument:argument`; the reply as a text, `MISS`, or the error's line.
    pub fn call(&mut self, name: &str) -> String {
        self.call_done(name).0
    }

    /// The same, with what the call has left.
    pub fn call_done(&mut self, name: &str) -> (String, ScriptResult) {
        let mut parts = name.split(':');
        let method = parts.next().unwrap();
        let arguments: Vec<&[u8]> = parts.map(str::as_bytes).collect();
        let id = if method == "dump" {
            ScriptMethodId::Dump
        } else {
            let methods = self.scripts.types()[0].object_type.methods;
            let place = methods.iter().position(|own| own.name == method);
            ScriptMethodId::Own(place.unwrap_or_else(|| panic!("no method {method}")))
        };
        let mut out = b"before".to_vec();
        let done = self.done(id, &arguments, &mut out);
        let text = String::from_utf8(out.split_off(6)).unwrap();
        assert_eq!(out, b"before");
        let reply = match &done.outcome {
            ScriptOutcome::Value { .. } => text,
            outcome => {
                assert_eq!(text, "");
                match outcome {
                    ScriptOutcome::Miss => "MISS".to_owned(),
                    ScriptOutcome::Error(line) => {
                        assert!(done.change.is_none(), "an error changes nothing");
                        line.clone()
                    }
                    _ => "MOVED".to_owned(),
                }
            }
        };
        if let Some(change) = &done.change {
            self.state = Some(change.plain.clone());
        }
        (reply, done)
    }
}
