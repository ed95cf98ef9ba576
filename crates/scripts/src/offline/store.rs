//! Objects and plain values of a test, in memory, and the clock that it moves.
//!
//! # Invariants
//! * A call takes effect as in the server: through [`Registry::commit`], with what follows it in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cattlegrid_objects::{
    Arguments, CallName, CallResult, FollowUp, HostedMethod, OBJECT_KEY_MAX, Object, ObjectMoved,
    ObjectOutcome, ObjectState, Registry, ScriptCall, ScriptOutcome, ScriptWorld, StateChange, StateView,
    VirtualKey, copy_plain,
};
use cattlegrid_store::{Memory, Tree};

/// The time at which a test begins: 2026-01-01T00:00:00Z.
pub(super) const START_MS: u64 = 1_767_225_600_000;
/// Memory for the members of a test's objects.
const MEMORY_BYTES: usize = 64 << 20;
/// Bytes that a step of a long reply reads.
const LISTING_BYTES: usize = 64 << 10;

/// What a call has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Value(Vec<u8>),
    Miss,
    /// A line without its end.
    Error(String),
    /// No client can make this call.
    Wrong(String),
}

/// What is kept for one key.
#[derive(Debug)]
struct TestObject {
    state: Content,
    expires_ms: Option<u64>,
    tags: BTreeSet<Vec<u8>>,
}

#[derive(Debug)]
enum Content {
    Bytes(Vec<u8>),
    Tree(Box<Tree>),
}

impl TestObject {
    fn view(&self) -> StateView<'_> {
        match &self.state {
            Content::Bytes(bytes) => StateView::Bytes(bytes),
            Content::Tree(tree) => StateView::Tree(tree),
        }
    }
}

/// A type's number and an object's key.
type ObjectKey = (u16, Vec<u8>);

/// Everything that a test's calls work on.
#[derive(Debug)]
pub(super) struct Store {
    registry: Arc<Registry>,
    memory: Arc<Memory>,
    pub(super) now_ms: u64,
    objects: BTreeMap<ObjectKey, TestObject>,
    /// Value and end, by key.
    plain: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    /// Names and texts of events, in JSON.
    pub(super) events: Vec<(String, String)>,
    pub(super) log: Vec<String>,
    /// Keys that a loader would have been asked for.
    pub(super) loads: Vec<Vec<u8>>,
    calls: u64,
}

impl Store {
    /// An empty one.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn new(registry: Arc<Registry>) -> Result<Self, String> {
        let memory = Memory::new(MEMORY_BYTES).map_err(|error| error.to_string())?;
        Ok(Self {
            registry,
            memory,
            now_ms: START_MS,
            objects: BTreeMap::new(),
            plain: BTreeMap::new(),
            events: Vec::new(),
            log: Vec::new(),
            loads: Vec::new(),
            calls: 0,
        })
    }

    /// A plain value, if it has not expired.
    pub(super) fn plain(&self, key: &[u8]) -> Option<&[u8]> {
        let (value, ends) = self.plain.get(key)?;
        ends.is_none_or(|ends| ends > self.now_ms).then_some(value)
    }

    /// Whether an ordinary key can have this name.
    pub(super) fn check_plain(&self, key: &[u8]) -> Result<(), String> {
        check_key(key)?;
        match self.registry.named(key) {
            None => Ok(()),
            Some(_) => Err(format!("the key {} names an object or a method", shown(key))),
        }
    }

    /// Stores a plain value.
    pub(super) fn set_plain(&mut self, key: &[u8], value: &[u8], ttl_s: u32) {
        let ends = (ttl_s > 0).then(|| self.now_ms.saturating_add(u64::from(ttl_s) * 1000));
        self.plain.insert(key.to_vec(), (value.to_vec(), ends));
    }

    /// Makes a call by its name, as clients write it.
    pub(super) fn call_name(&mut self, name: &[u8]) -> Answer {
        let registry = Arc::clone(&self.registry);
        if let Err(text) = check_key(name) {
            return Answer::Wrong(text);
        }
        let Some(VirtualKey::Call(named)) = registry.named(name) else {
            return Answer::Wrong(format!("no call: {}", String::from_utf8_lossy(name)));
        };
        self.call_named(&registry, &named)
    }

    fn call_named(&mut self, registry: &Registry, named: &CallName<'_>) -> Answer {
        let mut buffer = Vec::new();
        match registry.split(named, &mut buffer) {
            Ok((key, arguments)) => self.call_method(registry, named, key, &arguments),
            Err(line) => Answer::Error(line),
        }
    }

    /// Makes a call with arguments of any bytes.
    pub(super) fn call(
        &mut self,
        type_name: &str,
        method: &str,
        key: &[u8],
        arguments: &[Vec<u8>],
    ) -> Answer {
        let registry = Arc::clone(&self.registry);
        let found = registry.types().find(|one| one.name == type_name);
        let Some(type_id) = found.map(|one| one.id) else {
            return Answer::Wrong(format!("no type {type_name}"));
        };
        if !(1..=OBJECT_KEY_MAX).contains(&key.len()) {
            return Answer::Wrong(format!(
                "the key of an object has 1 to {OBJECT_KEY_MAX} bytes, not {}",
                key.len()
            ));
        }
        let Some(method) = registry.method_of(type_id, method.as_bytes()) else {
            return Answer::Error(format!("CLIENT_ERROR {type_name} has no method {method}"));
        };
        let named = CallName { type_id, method, rest: None };
        let arguments = Arguments::of(arguments.iter().map(Vec::as_slice));
        self.call_method(&registry, &named, key, &arguments)
    }

    fn call_method(
        &mut self,
        registry: &Registry,
        named: &CallName<'_>,
        key: &[u8],
        arguments: &Arguments<'_>,
    ) -> Answer {
        self.calls += 1;
        let now_ms = self.now_ms;
        self.objects.retain(|_, kept| kept.expires_ms.is_none_or(|ends| ends > now_ms));
        match registry.script(named.method) {
            Some(script) => self.call_host(registry, &script, named, key, arguments),
            None => self.call_shipped(registry, named, key, arguments),
        }
    }

    fn call_host(
        &mut self,
        registry: &Registry,
        script: &HostedMethod<'_>,
        named: &CallName<'_>,
        key: &[u8],
        arguments: &Arguments<'_>,
    ) -> Answer {
        let own_key = (named.type_id, key.to_vec());
        let expires_ms = self.objects.get(&own_key).and_then(|kept| kept.expires_ms);
        let mut keys = vec![own_key.clone()];
        let named_keys = script.about.keys.iter().filter_map(|place| arguments.get(*place));
        keys.extend(named_keys.map(|key| (named.type_id, key.to_vec())));
        let mut states = keys.iter().map(|key| self.plain_state(key));
        let found = states.next().flatten();
        // `new` sees nothing of the object whose place the new one takes.
        let is_new = is_new(registry, named);
        let (own, replaces) = (found.as_deref().filter(|_| !is_new), is_new && found.is_some());
        let others: Vec<Option<Vec<u8>>> = states.collect();
        let call = ScriptCall {
            object_type: script.object_type,
            method: script.method,
            key,
            arguments,
            own,
            replaces,
            others: &others,
            expires_ms: expires_ms.filter(|_| !is_new),
            now_ms: self.now_ms,
            random: self.calls,
            settings: registry.settings(),
            own_settings: script.settings,
            zone: script.zone,
        };
        let mut out = Vec::new();
        let done = script.host.call(
            &call,
            &mut TestWorld { store: self, keys: &keys, begins_anew: is_new },
            &mut out,
        );
        let answer = match done.outcome {
            ScriptOutcome::Value { .. } => Answer::Value(out),
            ScriptOutcome::Miss => Answer::Miss,
            ScriptOutcome::Error(line) => Answer::Error(line),
            // Nothing else changes objects here.
            ScriptOutcome::Moved => Answer::Error("SERVER_ERROR the object has moved".to_owned()),
        };
        let mut failed = None;
        if let Some(new) = &done.change {
            let committed = self.change(&own_key, is_new, |object| {
                (registry.commit(object, new, done.expires_ms), Vec::new())
            });
            match committed {
                Ok(_) => self.tag(&own_key, &new.tags),
                Err(line) => failed = Some(line),
            }
        } else if let (Some(expires_ms), Some(kept)) = (done.expires_ms, self.objects.get_mut(&own_key)) {
            kept.expires_ms = expires_ms;
        }
        if let Some(line) = failed {
            return Answer::Error(line);
        }
        done.after.into_iter().for_each(|after| self.follow(after));
        answer
    }

    fn call_shipped(
        &mut self,
        registry: &Registry,
        named: &CallName<'_>,
        key: &[u8],
        arguments: &Arguments<'_>,
    ) -> Answer {
        let own_key = (named.type_id, key.to_vec());
        let (now_ms, random, mut out) = (self.now_ms, self.calls, Vec::new());
        let is_new = registry.names(named.method).1 == "new";
        let changed = self.change(&own_key, is_new, |object| {
            let done = registry.call(named.method, object, arguments, now_ms, random, &mut out);
            (done, std::mem::take(&mut out))
        });
        match changed {
            Err(line) | Ok((ObjectOutcome::Error(line), _)) => Answer::Error(line),
            Ok((ObjectOutcome::Value { .. }, out)) => Answer::Value(out),
            Ok((ObjectOutcome::Miss, _)) => Answer::Miss,
            Ok((ObjectOutcome::NoRoom(_), _)) => {
                Answer::Error("SERVER_ERROR out of memory storing object".to_owned())
            }
            Ok((ObjectOutcome::List { mut listing, .. }, _)) => {
                let keys: Vec<ObjectKey> = listing.keys().map(|key| (named.type_id, key.to_vec())).collect();
                let result_max = registry.settings().result_max;
                while let Some(place) = listing.wants() {
                    let view = self.objects.get(&keys[place]).map_or(StateView::Absent, TestObject::view);
                    listing.read(place, view, LISTING_BYTES, result_max);
                }
                match listing.finish() {
                    Ok(Some(out)) => Answer::Value(out),
                    Ok(None) => Answer::Miss,
                    Err(_) => Answer::Error("SERVER_ERROR result too large".to_owned()),
                }
            }
        }
    }

    /// Lets `run` change an object, or make it if it is not there or begins anew, and keeps what it leaves. Err: the line of an
    /// error.
    fn change(
        &mut self,
        key: &ObjectKey,
        begins_anew: bool,
        run: impl FnOnce(Object<'_>) -> (CallResult, Vec<u8>),
    ) -> Result<(ObjectOutcome, Vec<u8>), String> {
        let old = self.objects.remove(key);
        let (mut kept, replaced) = if begins_anew { (None, old) } else { (old, None) };
        let is_new = kept.is_none();
        let expires_ms = kept.as_ref().and_then(|kept| kept.expires_ms);
        let mut new = Vec::new();
        let state = match kept.as_mut().map(|kept| &mut kept.state) {
            None => ObjectState::Absent,
            Some(Content::Bytes(bytes)) => ObjectState::Bytes(bytes),
            Some(Content::Tree(tree)) => ObjectState::Tree(tree),
        };
        let object = Object::new(&key.1, state, &mut new, &self.memory, expires_ms);
        let (done, out) = run(object);
        let ttl_s = self.registry.type_settings(key.0).map_or(0, |own| own.ttl_s);
        let of_type = (ttl_s > 0).then(|| self.now_ms.saturating_add(u64::from(ttl_s) * 1000));
        let before = if is_new { of_type } else { expires_ms };
        let ends = done.expires_ms.unwrap_or(before);
        let tags = kept.as_mut().map(|kept| std::mem::take(&mut kept.tags)).unwrap_or_default();
        let state = match done.change {
            StateChange::None | StateChange::Tree => kept.map(|kept| kept.state),
            StateChange::Bytes => Some(Content::Bytes(new)),
            StateChange::NewTree(tree) => Some(Content::Tree(tree)),
            StateChange::Dropped => None,
        };
        if let (None, Some(replaced)) = (&state, replaced) {
            // It has failed.
            self.objects.insert(key.clone(), replaced);
        }
        if let Some(state) = state {
            self.objects.insert(key.clone(), TestObject { state, expires_ms: ends, tags });
        }
        match done.outcome {
            ObjectOutcome::Error(line) => Err(line),
            outcome => Ok((outcome, out)),
        }
    }

    fn plain_state(&self, key: &ObjectKey) -> Option<Vec<u8>> {
        let mut plain = Vec::new();
        copy_plain(self.objects.get(key)?.view(), &mut plain).then_some(plain)
    }

    fn tag(&mut self, key: &ObjectKey, tags: &[Vec<u8>]) {
        if let Some(kept) = self.objects.get_mut(key) {
            kept.tags.extend(tags.iter().cloned());
        }
    }

    fn follow(&mut self, after: FollowUp) {
        match after {
            FollowUp::Set { key, value, ttl_s } => self.set_plain(&key, &value, ttl_s),
            FollowUp::Invalidate(tag) => self.objects.retain(|_, kept| !kept.tags.contains(&tag)),
            FollowUp::Load(key) => self.loads.push(key),
            FollowUp::Event { name, json } => self.events.push((name, json)),
            FollowUp::Log(line) => self.log.push(line),
        }
    }
}

/// Whether the method makes the object, also in the place of an old one.
fn is_new(registry: &Registry, named: &CallName<'_>) -> bool {
    registry.names(named.method).1 == "new"
}

/// Whether a client can send this key.
fn check_key(key: &[u8]) -> Result<(), String> {
    if !(1..=OBJECT_KEY_MAX).contains(&key.len()) {
        return Err(format!("a key has 1 to {OBJECT_KEY_MAX} bytes, not {}", key.len()));
    }
    if key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
        return Err(format!("the key {} has a blank or a control character", shown(key)));
    }
    Ok(())
}

fn shown(key: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(key))
}

/// What a running method sees of the store.
struct TestWorld<'s> {
    store: &'s Store,
    keys: &'s [ObjectKey],
    begins_anew: bool,
}

impl ScriptWorld for TestWorld<'_> {
    fn read(&mut self, object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        if object == 0 && self.begins_anew {
            read(StateView::Absent);
            return Ok(());
        }
        let kept = self.keys.get(object).and_then(|key| self.store.objects.get(key));
        read(kept.map_or(StateView::Absent, TestObject::view));
        Ok(())
    }

    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<u32> {
        out.extend_from_slice(self.store.plain(key)?);
        Some(0)
    }

    fn check(&self, after: &FollowUp) -> Result<(), String> {
        match after {
            FollowUp::Set { key, .. } | FollowUp::Load(key) => self.store.check_plain(key),
            _ => Ok(()),
        }
    }
}
