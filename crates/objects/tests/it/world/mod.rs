//! Objects and a clock that tests step: calls by name, as clients write them.

#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests")]

use std::collections::HashMap;
use std::sync::Arc;

use cattlegrid_objects::{
    Arguments, Object, ObjectOutcome, ObjectState, Registry, Settings, StateChange, VirtualKey,
};
use cattlegrid_store::Memory;

/// 2026-01-01T00:00:00Z, a Thursday.
pub(crate) const NEW_YEAR_MS: u64 = 1_767_225_600_000;

/// Objects whose states are bytes, and the time.
pub(crate) struct World {
    pub(crate) registry: Registry,
    pub(crate) now_ms: u64,
    pub(crate) objects: HashMap<(u16, Vec<u8>), Stored>,
    memory: Arc<Memory>,
    random: u64,
}

/// A state, and when it expires as the store keeps it: in whole seconds, rounded up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    pub(crate) expires_ms: Option<u64>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self {
            registry: Registry::new(settings).unwrap(),
            now_ms: NEW_YEAR_MS,
            objects: HashMap::new(),
            memory: Memory::new(1 << 20).unwrap(),
            random: 1,
        }
    }

    pub(crate) fn in_zone(timezone: &str) -> Self {
        Self::with(Settings { timezone: timezone.to_owned(), ..Settings::default() })
    }

    /// The value of the reply; `MISS`; or the line of an error.
    pub(crate) fn call(&mut self, name: &str) -> String {
        String::from_utf8(self.call_bytes(name.as_bytes())).unwrap()
    }

    pub(crate) fn call_bytes(&mut self, name: &[u8]) -> Vec<u8> {
        let Some(VirtualKey::Call(call)) = self.registry.named(name) else {
            panic!("{name:?} names no method")
        };
        let mut buffer = Vec::new();
        match self.registry.split(&call, &mut buffer) {
            Ok((key, arguments)) => self.run(call.type_id, call.method, key, &arguments),
            Err(line) => line.into_bytes(),
        }
    }

    /// A call with arguments of any bytes.
    pub(crate) fn call_with(
        &mut self,
        type_name: &str,
        method: &str,
        key: &[u8],
        arguments: &[&[u8]],
    ) -> Vec<u8> {
        let name = format!("{type_name}:{method}:k");
        let Some(VirtualKey::Call(call)) = self.registry.named(name.as_bytes()) else {
            panic!("{type_name} has no method {method}")
        };
        self.run(call.type_id, call.method, key, &Arguments::of(arguments.iter().copied()))
    }

    fn run(
        &mut self,
        type_id: u16,
        method: cattlegrid_objects::MethodId,
        key: &[u8],
        arguments: &Arguments<'_>,
    ) -> Vec<u8> {
        let place = (type_id, key.to_vec());
        let now_ms = self.now_ms;
        self.objects.retain(|_, stored| stored.expires_ms.is_none_or(|end| end > now_ms));
        let found = self.objects.get(&place).cloned();
        let state = found.as_ref().map_or(ObjectState::Absent, |found| ObjectState::Bytes(&found.bytes));
        let found_end = found.as_ref().and_then(|found| found.expires_ms);
        let (mut new, mut out) = (Vec::new(), Vec::new());
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let object = Object::new(key, state, &mut new, &self.memory, found_end);
        let done = self.registry.call(method, object, arguments, now_ms, self.random, &mut out);
        let end =
            done.expires_ms.map_or(found_end, |end| end.map(|ms| ms.div_ceil(1000).saturating_mul(1000)));
        match done.change {
            StateChange::None => {
                if let Some(stored) = self.objects.get_mut(&place) {
                    stored.expires_ms = end;
                }
            }
            StateChange::Bytes => {
                self.objects.insert(place, Stored { bytes: new, expires_ms: end });
            }
            StateChange::Dropped => {
                self.objects.remove(&place);
            }
            StateChange::Tree | StateChange::NewTree(_) => panic!("these types have no trees"),
        }
        match done.outcome {
            ObjectOutcome::Value { .. } => out,
            ObjectOutcome::Miss => b"MISS".to_vec(),
            ObjectOutcome::Error(line) => line.into_bytes(),
            outcome => panic!("{outcome:?}"),
        }
    }

    /// Expects these replies of these calls, in order.
    #[track_caller]
    pub(crate) fn expect(&mut self, calls: &[(&str, &str)]) {
        for (name, reply) in calls {
            assert_eq!(self.call(name), *reply, "{name} at {}", self.now_ms);
        }
    }

    /// Goes on by seconds.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now_ms += seconds * 1000;
    }

    /// When the object expires, in milliseconds from now.
    pub(crate) fn expires_in(&self, type_id: u16, key: &str) -> Option<u64> {
        self.objects[&(type_id, key.as_bytes().to_vec())].expires_ms.map(|end| end - self.now_ms)
    }

    /// The object's bytes; None: there is no object.
    pub(crate) fn state(&self, type_id: u16, key: &str) -> Option<&[u8]> {
        self.objects.get(&(type_id, key.as_bytes().to_vec())).map(|stored| &*stored.bytes)
    }
}
