//! Objects in a map: calls by name, as a server executes them, without a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use cattlegrid_objects::{
    Arguments, Object, ObjectOutcome, ObjectState, Registry, Settings, StateChange, StateView, VirtualKey,
};
use cattlegrid_store::{Memory, Tree};
use proptest::collection::vec;
use proptest::prelude::*;

/// What a call answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(Vec<u8>),
    Miss,
    /// The line.
    Error(String),
    NoRoom,
}

impl Answer {
    /// The value as text; anything else in brackets.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Value(value) => String::from_utf8_lossy(&value).into_owned(),
            Self::Miss => "(miss)".to_owned(),
            Self::Error(line) => format!("({line})"),
            Self::NoRoom => "(no room)".to_owned(),
        }
    }

    /// The value as a number.
    #[track_caller]
    pub(crate) fn number(self) -> u64 {
        self.text().parse().expect("a number")
    }
}

#[derive(Debug)]
enum Own {
    Bytes(Vec<u8>),
    Tree(Box<Tree>),
}

/// Objects of all types.
#[derive(Debug)]
pub(crate) struct Objects {
    registry: Registry,
    memory: Arc<Memory>,
    own: BTreeMap<(u16, Vec<u8>), Own>,
    /// Trees may take more memory.
    pub(crate) may_grow: bool,
}

impl Objects {
    /// All types, with this budget in bytes for trees.
    pub(crate) fn new(settings: Settings, budget: usize) -> Self {
        let registry = Registry::new(settings).expect("valid settings");
        Self {
            registry,
            memory: Memory::new(budget).expect("address space"),
            own: BTreeMap::new(),
            may_grow: true,
        }
    }

    /// All types with their defaults.
    pub(crate) fn plain() -> Self {
        Self::new(Settings::default(), 256 << 20)
    }

    /// Calls by name, in the classic form.
    #[track_caller]
    pub(crate) fn get(&mut self, name: &str) -> String {
        let Some(VirtualKey::Call(call)) = self.registry.named(name.as_bytes()) else {
            panic!("no call: {name}")
        };
        let mut buffer = Vec::new();
        let (key, arguments) = self.registry.split(&call, &mut buffer).expect("few arguments");
        let arguments: Vec<&[u8]> = arguments.iter().collect();
        let (key, method) = (key.to_vec(), self.registry.definition(call.method).name);
        self.call_numbered(call.type_id, method, &key, &arguments).text()
    }

    /// Calls with any bytes as key and arguments.
    #[track_caller]
    pub(crate) fn call(
        &mut self,
        object_type: &str,
        method: &str,
        key: &[u8],
        arguments: &[&[u8]],
    ) -> Answer {
        let id = self.registry.types().find(|own| own.name == object_type).expect("a type").id;
        self.call_numbered(id, method, key, arguments)
    }

    /// Whether the state is a tree, and its bytes.
    pub(crate) fn state(&self, object_type: &str, key: &[u8]) -> Option<(bool, usize)> {
        let id = self.registry.types().find(|own| own.name == object_type)?.id;
        self.own.get(&(id, key.to_vec())).map(|own| match own {
            Own::Bytes(bytes) => (false, bytes.len()),
            Own::Tree(tree) => (true, tree.bytes() as usize),
        })
    }

    #[track_caller]
    fn call_numbered(&mut self, type_id: u16, method: &str, key: &[u8], arguments: &[&[u8]]) -> Answer {
        let method = self.registry.method_of(type_id, method.as_bytes()).expect("a method");
        let place = (type_id, key.to_vec());
        let (mut new, mut out) = (Vec::new(), Vec::new());
        let state = match self.own.get_mut(&place) {
            None => ObjectState::Absent,
            Some(Own::Bytes(bytes)) => ObjectState::Bytes(bytes),
            Some(Own::Tree(tree)) => ObjectState::Tree(tree),
        };
        let others = if self.may_grow { None } else { self.memory.scattered(self.memory.free_bytes()) };
        let object = Object::new(key, state, &mut new, &self.memory, None);
        let arguments = Arguments::of(arguments.iter().copied());
        let done = self.registry.call(method, object, &arguments, 1_000_000, 7, &mut out);
        drop(others);
        let failed = matches!(done.outcome, ObjectOutcome::Error(_) | ObjectOutcome::NoRoom(_));
        match done.change {
            StateChange::None | StateChange::Tree => {}
            _ if failed => panic!("a call that fails changes nothing"),
            StateChange::Bytes => drop(self.own.insert(place, Own::Bytes(new))),
            StateChange::NewTree(tree) => drop(self.own.insert(place, Own::Tree(tree))),
            StateChange::Dropped => drop(self.own.remove(&place)),
        }
        match done.outcome {
            ObjectOutcome::Value { .. } => Answer::Value(out),
            ObjectOutcome::Miss => Answer::Miss,
            ObjectOutcome::Error(line) => {
                assert!(line.bytes().all(|byte| byte >= b' '), "one line: {line:?}");
                Answer::Error(line)
            }
            ObjectOutcome::NoRoom(_) => Answer::NoRoom,
            ObjectOutcome::List { mut listing, .. } => {
                let keys: Vec<Vec<u8>> = listing.keys().map(<[u8]>::to_vec).collect();
                while let Some(wanted) = listing.wants() {
                    let view = match self.own.get(&(type_id, keys[wanted].clone())) {
                        None => StateView::Absent,
                        Some(Own::Bytes(bytes)) => StateView::Bytes(bytes),
                        Some(Own::Tree(tree)) => StateView::Tree(tree),
                    };
                    listing.read(wanted, view, 1024, 1 << 20);
                }
                match listing.finish() {
                    Ok(Some(value)) => Answer::Value(value),
                    Ok(None) => Answer::Miss,
                    Err(_) => Answer::Error("SERVER_ERROR result too large".to_owned()),
                }
            }
        }
    }
}

/// A generator of numbers for tests, from a seed.
#[derive(Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Places of methods in a list, and arguments of any bytes.
pub(crate) fn any_calls() -> impl Strategy<Value = Vec<(prop::sample::Index, Vec<Vec<u8>>)>> {
    let arguments = vec(vec(any::<u8>(), 0..300), 0..4);
    vec((any::<prop::sample::Index>(), arguments), 1..40)
}

/// Executes such calls on an object: they do not panic, and what fails changes nothing.
pub(crate) fn execute(object_type: &str, methods: &[&str], calls: &[(prop::sample::Index, Vec<Vec<u8>>)]) {
    let mut objects = Objects::plain();
    for (method, arguments) in calls {
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        objects.call(object_type, methods[method.index(methods.len())], b"K", &arguments);
    }
}
