//! A call for unit tests of this crate.

use std::collections::BTreeMap;

use cattlegrid_objects::{
    Arguments, FollowUp, ObjectMoved, ScriptCall, ScriptMethodId, ScriptWorld, Settings, StateView,
    TypeSettings, Zone,
};
use mlua::{Lua, MultiValue};

use crate::current::{self, CallEffects, CurrentCall};

/// A world with plain values, in which tags `bad...` are refused.
#[derive(Debug, Default)]
pub(crate) struct FakeWorld {
    pub(crate) plain: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
}

impl ScriptWorld for FakeWorld {
    fn read(&mut self, _object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        read(StateView::Absent);
        Ok(())
    }

    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<u32> {
        let (value, flags) = self.plain.get(key)?;
        out.extend_from_slice(value);
        Some(*flags)
    }

    fn check(&self, after: &FollowUp) -> Result<(), String> {
        match after {
            FollowUp::Invalidate(tag) if tag.starts_with(b"bad") => Err("no tag".to_owned()),
            _ => Ok(()),
        }
    }
}

/// The circumstances of a call.
#[derive(Debug)]
pub(crate) struct TestSetting {
    pub(crate) now_ms: u64,
    pub(crate) random: u64,
    pub(crate) zone: Zone,
    pub(crate) own: Option<Vec<u8>>,
    pub(crate) expires_ms: Option<u64>,
}

impl Default for TestSetting {
    fn default() -> Self {
        Self { now_ms: 1_700_000_000_500, random: 7, zone: Zone::UTC, own: None, expires_ms: None }
    }
}

impl TestSetting {
    /// Runs `run` as a call, the first of its thread; returns its result and the call's effects.
    pub(crate) fn run<R>(&self, world: &mut FakeWorld, run: impl FnOnce() -> R) -> (R, CallEffects) {
        let settings = Settings::default();
        let own_settings = TypeSettings::new("test");
        let call = ScriptCall {
            object_type: 0,
            method: ScriptMethodId::Own(0),
            key: b"k",
            arguments: &Arguments::none(),
            own: self.own.as_deref(),
            replaces: false,
            others: &[],
            expires_ms: self.expires_ms,
            now_ms: self.now_ms,
            random: self.random,
            settings: &settings,
            own_settings: &own_settings,
            zone: &self.zone,
        };
        let mut current = CurrentCall { call: &call, world, number: 1, written: CallEffects::default() };
        let result = current::enter(&mut current, run);
        (result, current.written)
    }
}

/// A VM with the library.
pub(crate) fn vm() -> Lua {
    let lua = Lua::new();
    crate::library::install(&lua).expect("a new VM has memory");
    lua
}

/// The results of a source in a call, as texts separated by blanks, or the first line of its error.
pub(crate) fn eval(lua: &Lua, setting: &TestSetting, source: &str) -> String {
    let run = || lua.load(source).set_name("=test.luau").eval::<MultiValue>();
    match setting.run(&mut FakeWorld::default(), run).0 {
        Ok(values) => {
            let texts: Vec<String> = values.iter().map(|value| value.to_string().expect("a text")).collect();
            texts.join(" ")
        }
        Err(error) => error_text(&error),
    }
}

/// The first line of an error.
pub(crate) fn error_text(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { cause, .. } => error_text(cause),
        mlua::Error::RuntimeError(text) => text.clone(),
        error => error.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}
