//! The server of a test of types: an engine in this process, of which the test is the one client.
//!
//! What the test asks for goes through the parser, as bytes that a client could send, so that limits, errors
//! and effects are those of a server. Two things differ: every key may be loaded, which is noted and not done
//! ([`AnyLoads`]), and the clock may be set back, as that of a server's machine.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cattlegrid_config::{RuleFile, Settings};
use cattlegrid_engine::EventKind;
use cattlegrid_engine::rules::Rules;
use cattlegrid_objects::{
    FollowUp, Host, HostType, OBJECT_KEY_MAX, ObjectMoved, Registry, ScriptCall, ScriptResult, ScriptWorld,
    StateView, VirtualKey,
};
use cattlegrid_protocol::{LINE_MAX, ParsedResponse, Response, parse_response};
use cattlegrid_scripts::{Scripts, Seen, TestReply, TestServer};

use super::KEY_BYTES_MAX;
use super::client::{ObjectClient, SendResult};

/// See the module's text.
pub(crate) struct EngineServer {
    client: ObjectClient,
    host: Arc<AnyLoads>,
    seen: Seen,
}

impl EngineServer {
    /// An empty server with these types, under these settings without `prefix`, whose clock shows this Unix
    /// time in milliseconds. Of memory it has what a server has by default, or for two of the longest values.
    /// `control`: what control keys begin with; empty: there are none.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn start(
        scripts: &Arc<Scripts>,
        settings: &cattlegrid_objects::Settings,
        control: &str,
        unix_ms: u64,
    ) -> Result<Self, String> {
        let mut objects = settings.clone();
        objects.prefix.clear();
        for own in scripts.types() {
            if objects.types.iter().all(|one| one.name != own.settings.name) {
                objects.types.push(own.settings.clone());
            }
        }
        let mut server = Settings::default();
        server.item_bytes_max = objects.result_max;
        server.memory_bytes = server.memory_bytes.max(2 * server.item_bytes_max);
        server.protection.prefixes = objects.prefixes.clone();
        // Behind the prefix of objects, control keys may begin as their names do without it.
        let is_like = |name: &str| control.starts_with(name) || format!("{name}:").starts_with(control);
        if !control.is_empty() && !objects.types.iter().any(|own| is_like(&own.name)) {
            let mut file = RuleFile::parse(Path::new(""), "").map_err(|error| error.to_string())?;
            file.rules = Arc::new(Rules::new(Vec::new(), Vec::new()).with_prefixes(objects.prefixes.clone()));
            server.rule_file = Some(file);
            control.clone_into(&mut server.protection.control);
        }
        let host = Arc::new(AnyLoads { scripts: Arc::clone(scripts), loads: Mutex::default() });
        let registry = Registry::with_host(objects, Some(Arc::clone(&host) as Arc<dyn Host>))?.of_trial();
        let mut client = ObjectClient::with_types(&server, registry, unix_ms)
            .map_err(|error| format!("there is no memory for the items: {error}"))?;
        client.note();
        Ok(Self { client, host, seen: Seen::default() })
    }

    fn send(&mut self, line: &[&[u8]], data: Option<&[u8]>) -> TestReply {
        let line = line.concat();
        if line.len() > LINE_MAX {
            return TestReply::Wrong(format!("a request has up to {LINE_MAX} bytes, not {}", line.len()));
        }
        let data = data.map_or(Vec::new(), |data| [data, b"\r\n"].concat());
        let SendResult::Replies(reply) = self.client.send(&[&line, &b"\r\n"[..], &data].concat()) else {
            unreachable!("a request is whole")
        };
        let reply = read(&reply);
        let (events, lines) = self.client.take_noted();
        for event in events {
            if let EventKind::Script { name, json } = event.kind {
                self.seen.events.push((name.into(), json.into()));
            }
        }
        self.seen.log.extend(lines);
        let loads = std::mem::take(&mut *self.host.loads.lock().unwrap_or_else(PoisonError::into_inner));
        if !matches!(reply, TestReply::Error(_)) {
            // A call that fails loads nothing.
            self.seen.loads.extend(loads);
        }
        reply
    }

    /// Whether an ordinary key can have this name.
    fn check_plain(&self, key: &[u8]) -> Result<(), String> {
        check_key(key)?;
        match self.client.registry().named(key) {
            None => Ok(()),
            Some(_) => Err(format!("the key {} names an object or a method", shown(key))),
        }
    }
}

impl TestServer for EngineServer {
    fn now_ms(&self) -> u64 {
        self.client.unix_ms()
    }

    fn set_time(&mut self, unix_ms: u64) -> Result<(), String> {
        self.client.set_wall_clock(unix_ms)
    }

    fn call_name(&mut self, name: &[u8]) -> TestReply {
        if let Err(text) = check_key(name) {
            return TestReply::Wrong(text);
        }
        match self.client.registry().named(name) {
            Some(VirtualKey::Call(_)) => self.send(&[b"mg ", name, b" v"], None),
            _ => TestReply::Wrong(format!("no call: {}", cattlegrid_scripts::escaped(name))),
        }
    }

    fn call(&mut self, object_type: &str, method: &str, key: &[u8], arguments: &[Vec<u8>]) -> TestReply {
        let registry = self.client.registry();
        let Some(found) = registry.types().find(|one| one.name == object_type) else {
            return TestReply::Wrong(format!("no type {object_type}"));
        };
        if !(1..=OBJECT_KEY_MAX).contains(&key.len()) {
            return TestReply::Wrong(format!(
                "the key of an object has 1 to {OBJECT_KEY_MAX} bytes, not {}",
                key.len()
            ));
        }
        let (mut name, mut flags) = (registry.object_name(found.id, key).unwrap_or_default(), &b" v A"[..]);
        if name.iter().any(|byte| is_between_words(*byte)) {
            (name, flags) = (STANDARD.encode(name).into_bytes(), b" b v A");
        }
        if name.len() > KEY_BYTES_MAX {
            return TestReply::Wrong(format!("the key {} is too long for a client to send", shown(key)));
        }
        let parts = [method.as_bytes()].into_iter().chain(arguments.iter().map(Vec::as_slice));
        let parts: Vec<Vec<u8>> = parts.map(escaped).collect();
        let all = parts.join(&b':');
        match arguments.last() {
            // The last argument may be as long as a value.
            Some(last) if name.len() + all.len() + 16 > LINE_MAX => {
                let length = last.len().to_string();
                let before = parts[..arguments.len()].join(&b':');
                self.send(&[b"ms ", &name, b" ", length.as_bytes(), flags, &before], Some(last))
            }
            _ => self.send(&[b"mg ", &name, flags, &all], None),
        }
    }

    fn plain(&mut self, key: &[u8]) -> TestReply {
        match self.check_plain(key) {
            Ok(()) => self.send(&[b"mg ", key, b" v"], None),
            Err(text) => TestReply::Wrong(text),
        }
    }

    fn set_plain(&mut self, key: &[u8], value: &[u8]) -> TestReply {
        match self.check_plain(key) {
            Ok(()) => self.send(&[b"ms ", key, b" ", value.len().to_string().as_bytes()], Some(value)),
            Err(text) => TestReply::Wrong(text),
        }
    }

    fn seen(&mut self) -> &mut Seen {
        &mut self.seen
    }
}

/// What the bytes of a reply say.
fn read(reply: &[u8]) -> TestReply {
    match parse_response(reply) {
        ParsedResponse::Complete { response: Response::MetaValue { data, .. }, .. } => {
            TestReply::Value(data.to_vec())
        }
        ParsedResponse::Complete { response: Response::Meta { .. }, .. } => TestReply::None,
        // Blanks at the end are the script's.
        _ => TestReply::Error(
            String::from_utf8_lossy(reply.strip_suffix(b"\r\n").unwrap_or(reply)).into_owned(),
        ),
    }
}

/// Whether a client can send this key.
fn check_key(key: &[u8]) -> Result<(), String> {
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Err(format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {}", key.len()));
    }
    if key.iter().any(|byte| is_between_words(*byte)) {
        return Err(format!("the key {} has a blank or a control character", shown(key)));
    }
    Ok(())
}

fn is_between_words(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

/// A method or an argument as a part of the flag `A`.
fn escaped(part: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.len());
    for byte in part {
        if is_between_words(*byte) || matches!(byte, b':' | b'%') {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(*byte);
        }
    }
    out
}

fn shown(key: &[u8]) -> String {
    cattlegrid_scripts::quoted(key)
}

/// Runs methods, which may load every key: there are no loaders.
#[derive(Debug)]
struct AnyLoads {
    scripts: Arc<Scripts>,
    /// Keys to load, until they are taken.
    loads: Mutex<Vec<Vec<u8>>>,
}

impl Host for AnyLoads {
    fn types(&self) -> &[HostType] {
        self.scripts.types()
    }

    fn digest(&self) -> u64 {
        self.scripts.digest()
    }

    fn call(&self, call: &ScriptCall<'_>, world: &mut dyn ScriptWorld, out: &mut Vec<u8>) -> ScriptResult {
        let mut done = self.scripts.call(call, &mut AnyLoadsWorld(world), out);
        let loads = done.after.extract_if(.., |after| matches!(after, FollowUp::Load(_)));
        let keys = loads.filter_map(|after| if let FollowUp::Load(key) = after { Some(key) } else { None });
        self.loads.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
        done
    }
}

/// A world in which each key that could be set can be loaded.
struct AnyLoadsWorld<'w>(&'w mut dyn ScriptWorld);

impl ScriptWorld for AnyLoadsWorld<'_> {
    fn read(&mut self, object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        self.0.read(object, read)
    }

    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<u32> {
        self.0.get(key, out)
    }

    fn check(&self, after: &FollowUp) -> Result<(), String> {
        match after {
            FollowUp::Load(key) => {
                self.0.check(&FollowUp::Set { key: key.clone(), value: Vec::new(), ttl_s: 0 })
            }
            _ => self.0.check(after),
        }
    }
}

#[cfg(test)]
mod tests;
