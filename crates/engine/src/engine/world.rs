//! Reads of a host's method while it runs: each under the lock of one shard, for a moment.
//!
//! An object of the call is shown only as long as it has the CAS with which its plain state was copied, so
//! that all that a method sees of it belongs together.

use std::borrow::Cow;

use cattlegrid_objects::{FollowUp, ObjectMoved, StateView};

use crate::engine::Engine;
use crate::running::ItemKey;
use crate::shard::Shard;
use crate::shard::object::{Call, ObjectCopy};
use crate::step::Step;

/// Longest name of an event in bytes.
const EVENT_NAME_MAX: usize = 64;

/// Longest JSON of an event, and longest line for the log, in bytes.
const TEXT_MAX: usize = 4096;

/// The objects and values that a host's method can read while it runs.
pub(crate) struct World<'a, 's> {
    engine: &'a Engine,
    call: &'a Call<'a>,
    seen: Option<ObjectCopy>,
    others: Vec<OtherObject>,
    step: &'a Step<'s>,
}

/// An object that an argument of the call names.
#[derive(Debug)]
pub(crate) struct OtherObject {
    pub(crate) hash: u64,
    /// None: no object has this key, or the argument is left out.
    pub(crate) item_key: Option<ItemKey>,
    /// None: there was no object.
    pub(crate) cas: Option<u64>,
}

impl OtherObject {
    pub(crate) const NONE: Self = Self { hash: 0, item_key: None, cas: None };
}

impl<'a, 's> World<'a, 's> {
    pub(crate) fn new(
        engine: &'a Engine,
        call: &'a Call<'a>,
        seen: Option<ObjectCopy>,
        others: Vec<OtherObject>,
        step: &'a Step<'s>,
    ) -> Self {
        Self { engine, call, seen, others, step }
    }

    /// The key behind the prefix of the call's client, if a client could use it for a plain value.
    fn check_key<'k>(&self, key: &'k [u8]) -> Result<Cow<'k, [u8]>, String> {
        let name = key;
        let key = self.call.behind(key);
        let wrong = |what: &str| Err(format!("the key {:?} {what}", String::from_utf8_lossy(name)));
        if name.is_empty() || key.len() > cattlegrid_protocol::KEY_MAX {
            return Err(format!("a key must have 1 to {} bytes", cattlegrid_protocol::KEY_MAX));
        }
        if key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            return wrong("has a blank or a control character");
        }
        if self.engine.shared().control(&key).is_some() {
            return wrong("is a control key");
        }
        if self.engine.objects().is_some_and(|registry| registry.named(&key).is_some()) {
            return wrong("names an object or a method");
        }
        Ok(key)
    }

    fn check_load(&self, key: &[u8]) -> Result<(), String> {
        let key = self.check_key(key)?;
        let active = self.engine.shared().rules();
        let ruled = active.as_ref().and_then(|active| active.find(&key));
        if ruled.is_some_and(|ruled| ruled.rule.loading.is_some()) {
            return Ok(());
        }
        Err(format!("no rule with a loader matches the key {:?}", String::from_utf8_lossy(&key)))
    }
}

impl cattlegrid_objects::ScriptWorld for World<'_, '_> {
    fn read(&mut self, object: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        let (hash, item_key, cas) = match object.checked_sub(1).map(|place| self.others.get(place)) {
            None if self.call.begins_anew() => {
                read(StateView::Absent);
                return Ok(());
            }
            None => (self.call.hash, self.call.item_key, self.seen.map(|seen| seen.cas)),
            Some(Some(OtherObject { hash, item_key: Some(item_key), cas })) => (*hash, &**item_key, *cas),
            Some(_) => {
                read(StateView::Absent);
                return Ok(());
            }
        };
        let mut shard = self.engine.shards.lock(self.engine.shards.number(hash));
        shard.view_object(hash, item_key, false, self.step, |view, seen| {
            if seen.map(|seen| seen.cas) != cas {
                return Err(ObjectMoved);
            }
            read(view);
            Ok(())
        })
    }

    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<u32> {
        let key = self.check_key(key).ok()?;
        let hash = self.engine.hash_key(&key);
        let mut shard = self.engine.shards.lock(self.engine.shards.number(hash));
        shard.read_plain(&key, hash, self.step, out)
    }

    fn check(&self, after: &FollowUp) -> Result<(), String> {
        match after {
            FollowUp::Set { key, value, ttl_s: _ } => {
                let key = self.check_key(key)?;
                if !self.engine.shared().fits(&key, 0, value.len()) {
                    return Err(format!("a value of {} bytes is larger than an item may be", value.len()));
                }
            }
            FollowUp::Invalidate(tag) => {
                self.engine.shared().tag_hasher().hash(tag).map_err(|error| error.to_string())?;
            }
            FollowUp::Load(key) => self.check_load(key)?,
            FollowUp::Event { name, json } => {
                let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                if !is_plain || !(1..=EVENT_NAME_MAX).contains(&name.len()) {
                    return Err(format!(
                        "the name of an event must be 1 to {EVENT_NAME_MAX} letters, digits or _"
                    ));
                }
                if json.len() > TEXT_MAX {
                    return Err(format!("the table of an event is longer than {TEXT_MAX} bytes in JSON"));
                }
            }
            FollowUp::Log(line) => {
                if line.len() > TEXT_MAX {
                    return Err(format!("a line of the log is longer than {TEXT_MAX} bytes"));
                }
            }
        }
        Ok(())
    }
}

impl Shard {
    /// Appends a fresh plain value; its client flags. None: there is none, and nothing is loaded or leased.
    fn read_plain(&mut self, key: &[u8], hash: u64, step: &Step<'_>, out: &mut Vec<u8>) -> Option<u32> {
        self.advance(step);
        let found = self.find(hash, key, step)?;
        self.store.count_read(found);
        let item = self.store.item(found);
        item.value().copy_to(out);
        Some(item.flags())
    }
}
