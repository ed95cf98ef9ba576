//! Objects of the type `t` as a server keeps them: calls are committed, and their fields are flat or in trees.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::{
    CallResult, FollowUp, Host, Object, ObjectMoved, ObjectOutcome, ObjectState, Registry, ScriptCall,
    ScriptOutcome, ScriptWorld, Settings, StateChange, StateView, VirtualKey, copy_plain,
};
use cattlegrid_scripts::{Limits, Scripts};
use cattlegrid_store::{Memory, Tree};

#[derive(Debug)]
enum Kept {
    Bytes(Vec<u8>),
    Tree(Box<Tree>),
}

impl Kept {
    fn view(&self) -> StateView<'_> {
        match self {
            Self::Bytes(bytes) => StateView::Bytes(bytes),
            Self::Tree(tree) => StateView::Tree(tree),
        }
    }
}

/// Objects by their keys.
#[derive(Debug)]
pub struct Stored {
    registry: Arc<Registry>,
    memory: Arc<Memory>,
    objects: BTreeMap<Vec<u8>, (Kept, Option<u64>)>,
    pub now_ms: u64,
    calls: u64,
    /// Objects change after this many reads of a call.
    pub moves_after: usize,
    /// Reads of the last call.
    pub reads: usize,
}

impl Stored {
    pub fn new(text: &str) -> Self {
        // Nothing here is about the limit of time, and the machine may be slow.
        Self::with(text, &Limits { time: Duration::from_secs(60), ..Limits::default() })
    }

    pub fn with(text: &str, limits: &Limits) -> Self {
        let loaded = Scripts::load(&super::sources(text), limits);
        let (scripts, _) = loaded.unwrap_or_else(|problems| panic!("{problems:#?}"));
        let types = scripts.types().iter().map(|own| own.settings.clone()).collect();
        let settings = Settings { types, ..Settings::default() };
        let registry = Registry::with_host(settings, Some(scripts as Arc<dyn Host>)).unwrap();
        Self {
            registry: Arc::new(registry),
            memory: Memory::new(64 << 20).unwrap(),
            objects: BTreeMap::new(),
            now_ms: 1_700_000_000_000,
            calls: 0,
            moves_after: usize::MAX,
            reads: 0,
        }
    }

    /// Whether the object's members are in a tree.
    pub fn is_tree(&self, key: &str) -> bool {
        matches!(self.objects.get(key.as_bytes()), Some((Kept::Tree(_), _)))
    }

    /// Calls `t:method:key:argument...`: the value, `MISS`, `MOVED`, or the line of an error.
    pub fn call(&mut self, name: &str) -> String {
        let registry = Arc::clone(&self.registry);
        let name = format!("t:{name}");
        let Some(VirtualKey::Call(named)) = registry.named(name.as_bytes()) else { panic!("no call {name}") };
        let mut buffer = Vec::new();
        let (key, arguments) = registry.split(&named, &mut buffer).unwrap();
        self.calls += 1;
        let (now_ms, random, mut out) = (self.now_ms, self.calls, Vec::new());
        let Some(script) = registry.script(named.method) else {
            let outcome = self.change(key, |object| {
                registry.call(named.method, object, &arguments, now_ms, random, &mut out)
            });
            return shown(&outcome, out);
        };
        let mut keys = vec![key];
        keys.extend(script.about.keys.iter().filter_map(|place| arguments.get(*place)));
        let mut plain = keys.iter().map(|key| {
            let mut plain = Vec::new();
            copy_plain(self.objects.get(*key).map_or(StateView::Absent, |kept| kept.0.view()), &mut plain)
                .then_some(plain)
        });
        let found = plain.next().flatten();
        let is_new = registry.names(named.method).1 == "new";
        let (own, replaces) = (found.as_deref().filter(|_| !is_new), is_new && found.is_some());
        let others: Vec<Option<Vec<u8>>> = plain.collect();
        let call = ScriptCall {
            object_type: script.object_type,
            method: script.method,
            key,
            arguments: &arguments,
            own,
            replaces,
            others: &others,
            expires_ms: self.objects.get(key).and_then(|kept| kept.1),
            now_ms,
            random,
            settings: registry.settings(),
            own_settings: script.settings,
            zone: script.zone,
        };
        let mut seen = Seen { objects: &self.objects, keys: &keys, left: self.moves_after, reads: 0 };
        let done = script.host.call(&call, &mut seen, &mut out);
        self.reads = seen.reads;
        let has_failed = matches!(done.outcome, ScriptOutcome::Error(_) | ScriptOutcome::Moved);
        assert!(!has_failed || done.change.is_none(), "an error changes nothing");
        if let Some(new) = &done.change {
            let outcome = self.change(key, |object| registry.commit(object, new, done.expires_ms));
            assert!(matches!(outcome, ObjectOutcome::Value { .. }), "{outcome:?}");
        } else if let (Some(ends), Some(kept)) = (done.expires_ms, self.objects.get_mut(key)) {
            kept.1 = ends;
        }
        match done.outcome {
            ScriptOutcome::Value { .. } => String::from_utf8(out).unwrap(),
            ScriptOutcome::Miss => "MISS".to_owned(),
            ScriptOutcome::Error(line) => line,
            ScriptOutcome::Moved => "MOVED".to_owned(),
        }
    }

    fn change(&mut self, key: &[u8], run: impl FnOnce(Object<'_>) -> CallResult) -> ObjectOutcome {
        let mut kept = self.objects.remove(key);
        let mut new = Vec::new();
        let (state, expires_ms) = match &mut kept {
            None => (ObjectState::Absent, None),
            Some((Kept::Bytes(bytes), ends)) => (ObjectState::Bytes(bytes), *ends),
            Some((Kept::Tree(tree), ends)) => (ObjectState::Tree(tree), *ends),
        };
        let done = run(Object::new(key, state, &mut new, &self.memory, expires_ms));
        let kept = match done.change {
            StateChange::None | StateChange::Tree => kept.map(|(kept, _)| kept),
            StateChange::Bytes => Some(Kept::Bytes(new)),
            StateChange::NewTree(tree) => Some(Kept::Tree(tree)),
            StateChange::Dropped => None,
        };
        if let Some(kept) = kept {
            self.objects.insert(key.to_vec(), (kept, done.expires_ms.unwrap_or(expires_ms)));
        }
        done.outcome
    }
}

fn shown(outcome: &ObjectOutcome, out: Vec<u8>) -> String {
    match outcome {
        ObjectOutcome::Value { .. } => String::from_utf8(out).unwrap(),
        ObjectOutcome::Error(line) => line.clone(),
        outcome => format!("{outcome:?}"),
    }
}

struct Seen<'s> {
    objects: &'s BTreeMap<Vec<u8>, (Kept, Option<u64>)>,
    keys: &'s [&'s [u8]],
    left: usize,
    reads: usize,
}

impl ScriptWorld for Seen<'_> {
    fn read(&mut self, object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        self.reads += 1;
        self.left = self.left.checked_sub(1).ok_or(ObjectMoved)?;
        read(self.objects.get(self.keys[object]).map_or(StateView::Absent, |kept| kept.0.view()));
        Ok(())
    }

    fn get(&mut self, _key: &[u8], _out: &mut Vec<u8>) -> Option<u32> {
        None
    }

    fn check(&self, _after: &FollowUp) -> Result<(), String> {
        Ok(())
    }
}
