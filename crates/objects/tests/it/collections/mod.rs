//! Objects in a plain map: calls as an engine makes them, without its locks and items.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::HashMap;
use std::sync::Arc;

use cattlegrid_objects::{
    Arguments, Listing, MethodId, Object, ObjectOutcome, ObjectState, Registry, Settings, StateChange,
    StateView, TooLarge, VirtualKey,
};
use cattlegrid_store::{Memory, Tree};

/// What a call answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(String),
    Miss,
    Error(String),
    NoRoom,
}

/// A state.
#[derive(Debug)]
pub(crate) enum Kept {
    Bytes(Vec<u8>),
    Tree(Box<Tree>),
}

/// Objects and the registry.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) registry: Registry,
    pub(crate) memory: Arc<Memory>,
    pub(crate) objects: HashMap<(u16, Vec<u8>), Kept>,
    /// Bytes that a listing reads at once.
    pub(crate) budget: usize,
    pub(crate) random: u64,
    /// Calls that have changed an object.
    pub(crate) changes: usize,
    /// Reads of the last listing.
    pub(crate) reads: usize,
}

pub(crate) fn value(text: &str) -> Answer {
    Answer::Value(text.to_owned())
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default(), 64 << 20)
    }

    pub(crate) fn with(settings: Settings, memory_bytes: usize) -> Self {
        Self {
            registry: Registry::new(settings).expect("the settings are right"),
            memory: Memory::new(memory_bytes).expect("there are addresses"),
            objects: HashMap::new(),
            budget: 64 << 10,
            random: 1,
            changes: 0,
            reads: 0,
        }
    }

    /// A call by its name, and what it answers: `None` is a name of no call.
    pub(crate) fn call(&mut self, name: &str) -> Answer {
        self.call_bytes(name.as_bytes()).unwrap_or_else(|| panic!("{name} is no call"))
    }

    pub(crate) fn call_bytes(&mut self, name: &[u8]) -> Option<Answer> {
        let Some(VirtualKey::Call(call)) = self.registry.named(name) else { return None };
        let mut buffer = Vec::new();
        let registry = &self.registry;
        let parts = registry
            .split(&call, &mut buffer)
            .map(|(key, parts)| (key.to_vec(), parts.iter().map(<[u8]>::to_vec).collect::<Vec<_>>()));
        Some(match parts {
            Ok((key, parts)) => {
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                self.run(call.type_id, call.method, &key, &parts)
            }
            Err(text) => Answer::Error(text),
        })
    }

    /// A call with arguments of any bytes.
    pub(crate) fn ask(&mut self, type_name: &str, method: &str, key: &[u8], arguments: &[&[u8]]) -> Answer {
        let name = format!("{type_name}:{method}:x");
        let Some(VirtualKey::Call(call)) = self.registry.named(name.as_bytes()) else {
            panic!("{name} is no call")
        };
        self.run(call.type_id, call.method, key, arguments)
    }

    fn run(&mut self, type_id: u16, method: MethodId, key: &[u8], arguments: &[&[u8]]) -> Answer {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (mut new, mut out) = (Vec::new(), Vec::new());
        let place = (type_id, key.to_vec());
        let state = match self.objects.get_mut(&place) {
            None => ObjectState::Absent,
            Some(Kept::Bytes(bytes)) => ObjectState::Bytes(bytes),
            Some(Kept::Tree(tree)) => ObjectState::Tree(tree),
        };
        let object = Object::new(key, state, &mut new, &self.memory, None);
        let arguments = Arguments::of(arguments.iter().copied());
        let done = self.registry.call(method, object, &arguments, 1_000_000, self.random, &mut out);
        self.changes += usize::from(!matches!(done.change, StateChange::None));
        match done.change {
            StateChange::None | StateChange::Tree => {}
            StateChange::Bytes => drop(self.objects.insert(place, Kept::Bytes(new))),
            StateChange::NewTree(tree) => drop(self.objects.insert(place, Kept::Tree(tree))),
            StateChange::Dropped => drop(self.objects.remove(&place)),
        }
        match done.outcome {
            ObjectOutcome::Value { .. } => Answer::Value(text(&out)),
            ObjectOutcome::Miss => Answer::Miss,
            ObjectOutcome::Error(line) => Answer::Error(line),
            ObjectOutcome::NoRoom(_) => Answer::NoRoom,
            ObjectOutcome::List { listing, .. } => match self.list(type_id, *listing) {
                Ok(Some(bytes)) => Answer::Value(text(&bytes)),
                Ok(None) => Answer::Miss,
                Err(TooLarge) => Answer::Error("SERVER_ERROR result too large".to_owned()),
            },
        }
    }

    /// Reads a listing twice: to its end after a restart in the middle.
    fn list(&mut self, type_id: u16, mut listing: Listing) -> Result<Option<Vec<u8>>, TooLarge> {
        let result_max = self.registry.settings().result_max;
        let keys: Vec<Vec<u8>> = listing.keys().map(<[u8]>::to_vec).collect();
        self.reads = 0;
        for restart_after in [2, usize::MAX] {
            let mut reads = 0;
            while let Some(place) = listing.wants() {
                if reads == restart_after {
                    break;
                }
                let view = match self.objects.get(&(type_id, keys[place].clone())) {
                    None => StateView::Absent,
                    Some(Kept::Bytes(bytes)) => StateView::Bytes(bytes),
                    Some(Kept::Tree(tree)) => StateView::Tree(tree),
                };
                listing.read(place, view, self.budget, result_max);
                reads += 1;
            }
            if restart_after < usize::MAX {
                listing.restart();
            }
            self.reads = reads;
        }
        listing.finish()
    }

    /// The state of an object: whether it is a tree, and its members.
    pub(crate) fn state(&self, type_id: u16, key: &str) -> Option<(bool, Vec<u8>)> {
        match self.objects.get(&(type_id, key.as_bytes().to_vec()))? {
            Kept::Bytes(bytes) => Some((false, bytes.clone())),
            Kept::Tree(tree) => {
                let mut all = Vec::new();
                tree.scan(std::ops::Bound::Unbounded, |key, value| {
                    all.extend_from_slice(&(key.len() as u32).to_le_bytes());
                    all.extend_from_slice(key);
                    all.extend_from_slice(&(value.len() as u32).to_le_bytes());
                    value.copy_to(&mut all);
                    true
                });
                Some((true, all))
            }
        }
    }
}

/// Bytes as text; other bytes than UTF-8 as Latin-1.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| bytes.iter().map(|byte| *byte as char).collect())
}
