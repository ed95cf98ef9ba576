//! Invalidation by name: tags, cascades, flushes, and the control keys that any client can type.
//!
//! A tag is bumped by a control key, by a meta command with `G`, or by a cascade of a rule file. A bump takes
//! a number of the clock, and touches neither items nor leases: an item whose stamp is smaller is found to be
//! dead or stale when it is looked up.

use std::collections::VecDeque;

use cattlegrid_objects::VirtualKey as NamedObject;
use cattlegrid_protocol::{Block, Keys, Meta, MetaFlags, Request, StoreVerb, reply};
use cattlegrid_tags::{BumpKind, PrefixId, PurgeOutcome, TagError, TagHash};

use crate::bump_log::SentBump;
use crate::engine::Engine;
use crate::parked::{ParkedRequest, Pending, PieceResult};
use crate::reply::get::AskedKey;
use crate::reply::meta::{
    CommandFlags, Refusals, ReturnFlags, count_meta, hit, refusals_of, return_flags, status_line,
};
use crate::rules::why::WhyObject;
use crate::running::item_key;
use crate::shard::object::left;
use crate::step::{Context, Step};
use crate::time::Now;

/// Longest rolling flush and longest gradual purge, in seconds.
pub const ROLLING_FLUSH_MAX_S: u64 = 24 * 60 * 60;

/// The reply to an unknown control key, or to a command that it does not take.
const UNKNOWN: &str = "CLIENT_ERROR unknown control key";

/// The parsed text of a control key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Control<'k> {
    /// `tag:T`.
    Tag(ControlName<'k>),
    /// `bump:T`.
    Bump(ControlName<'k>),
    /// `flush:SECONDS`.
    Flush(u64),
    /// `why:KEY`.
    Why(ControlName<'k>),
    /// `nodes`.
    Nodes,
    /// `slow`.
    Slow,
}

/// The parts of a control key behind the prefix of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ControlName<'k> {
    prefix: PrefixId,
    name: &'k [u8],
}

/// The reply to a flush behind a prefix.
const NO_FLUSH: &str = "CLIENT_ERROR no flush of a prefix";

/// The reply to a purge with a period that is not soft.
const NOT_SOFT: &str = "CLIENT_ERROR a gradual purge is soft: T needs I";

/// The reply to what only nodes of a fleet can do.
const NO_FLEET: &str = "CLIENT_ERROR no log of etcd is followed";

/// The return flag of a purge with a period that took effect at once, since too many were running.
const AT_ONCE: &[u8] = b"T0";

/// The answer to a meta command about a tag or a control key.
struct ControlFlags {
    text: Option<String>,
    /// See [`AT_ONCE`].
    at_once: bool,
}

/// The answer to a control key as an item: it has no flags, no CAS and no end, and was never read. Its size.
struct TextFlags(usize);

impl<'k> Control<'k> {
    /// `rest`: the key without the prefix of its client and that of control keys.
    fn parse((prefix, rest): (PrefixId, &'k [u8])) -> Result<Self, String> {
        let named = |name| ControlName { prefix, name };
        if let Some(tag) = rest.strip_prefix(b"tag:") {
            Ok(Self::Tag(named(tag)))
        } else if let Some(tag) = rest.strip_prefix(b"bump:") {
            Ok(Self::Bump(named(tag)))
        } else if let Some(key) = rest.strip_prefix(b"why:").filter(|key| !key.is_empty()) {
            Ok(Self::Why(named(key)))
        } else if rest == b"nodes" {
            Ok(Self::Nodes)
        } else if rest == b"slow" {
            if prefix != PrefixId::NONE {
                // What is slow behind one prefix is not told apart.
                return Err(UNKNOWN.to_owned());
            }
            Ok(Self::Slow)
        } else if let Some(seconds) = rest.strip_prefix(b"flush:") {
            if prefix != PrefixId::NONE {
                // Floors are the server's.
                return Err(NO_FLUSH.to_owned());
            }
            let seconds = std::str::from_utf8(seconds).ok().and_then(|text| text.parse().ok());
            match seconds.filter(|seconds| (1..=ROLLING_FLUSH_MAX_S).contains(seconds)) {
                Some(seconds) => Ok(Self::Flush(seconds)),
                None => Err(format!("CLIENT_ERROR flush: seconds must be 1 to {ROLLING_FLUSH_MAX_S}")),
            }
        } else {
            Err(UNKNOWN.to_owned())
        }
    }
}

impl Engine {
    /// Takes the memory of the tags' arrays out of the budget, once: they are in use from now on.
    pub(crate) fn reserve_tags(&self) -> std::io::Result<()> {
        if self.tags_reserved() { Ok(()) } else { self.reserve(self.shared().tags().bumps().memory_bytes()) }
    }

    /// Flushes everything at `second`, or at once when that is now; then runs the cascades of a flush.
    pub fn flush(&self, second: u32, now: Now) {
        self.shared().flush(second, now.second);
    }

    /// Executes a request about a tag or a control key.
    #[cold]
    pub(crate) fn execute_tags(
        &self,
        request: &Request<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<ParkedRequest>> {
        let from = cx.out.place();
        cx.step.effects.bump_ticket = 0;
        self.execute_about_tags(request, cx);
        let ticket = std::mem::take(&mut cx.step.effects.bump_ticket);
        let is_barrier = match request {
            Request::MetaDelete(meta) | Request::MetaArith(meta) => meta.set.has(b'B'),
            _ => false,
        };
        if ticket == 0 { None } else { self.await_bump((ticket, is_barrier), from, refusals_of(request), cx) }
    }

    fn execute_about_tags(&self, request: &Request<'_>, cx: &mut Context<'_>) {
        let key: &[u8] = match request {
            Request::MetaGet(meta) | Request::MetaDelete(meta) | Request::MetaArith(meta) => {
                return self.execute_meta(request, meta, cx);
            }
            Request::Delete(delete) => delete.key,
            Request::Arith(arith) => arith.key,
            Request::Store(store) => match self.announced_key(store.key) {
                Some(key) if store.verb == StoreVerb::Set => {
                    let said = self.announce(key, store.data, cx.step.now).err();
                    let said = said.as_deref().unwrap_or("STORED");
                    return refusals_of(request).write(said, &mut cx.out.bytes);
                }
                _ => store.key,
            },
            Request::MetaSet(meta, data) if !meta.set.has(b'A') => {
                return self.execute_meta_set(meta, *data, cx);
            }
            Request::Touch(touch) => touch.key,
            _ => return refusals_of(request).write_no_name(false, UNKNOWN, &mut cx.out.bytes),
        };
        let asked = self.control(key);
        let text = match (request, asked) {
            (Request::Delete(_), Ok(Control::Tag(tag))) => {
                match self.bump_named(tag, BumpKind::Hard, &mut cx.step) {
                    Ok(_) => "DELETED".to_owned(),
                    Err(error) => format!("CLIENT_ERROR {error}"),
                }
            }
            (Request::Arith(arith), Ok(Control::Tag(tag))) if arith.incr && arith.delta == 1 => {
                match self.bump_named(tag, BumpKind::Hard, &mut cx.step) {
                    Ok(number) => number.to_string(),
                    Err(error) => format!("CLIENT_ERROR {error}"),
                }
            }
            (_, Err(error)) => error,
            _ => UNKNOWN.to_owned(),
        };
        // A packet is never answered otherwise than by an error here.
        let stores = matches!(request, Request::Store(_));
        refusals_of(request).write_no_name(stores, &text, &mut cx.out.bytes);
    }

    /// `tags:KEY`: the key for which tags are announced, behind the prefix of the client.
    fn announced_key<'k>(&self, key: &'k [u8]) -> Option<ControlName<'k>> {
        let (prefix, rest) = self.shared().control(key)?;
        let name = rest.strip_prefix(b"tags:").filter(|name| !name.is_empty())?;
        Some(ControlName { prefix, name })
    }

    /// Announces the tags that `data` names for a key. An error: the reply.
    fn announce(
        &self,
        ControlName { prefix, name }: ControlName<'_>,
        data: Block<'_>,
        now: Now,
    ) -> Result<(), String> {
        let key = [self.shared().prefixes().text(prefix), name].concat();
        // A key that is named as a whole may begin with a prefix of its own.
        let (prefix, _) = self.shared().prefixes().split(&key);
        let tags = self.shared().tag_hasher().parse_text(prefix, data.here().unwrap_or_default());
        let tags = tags.map_err(|error| format!("CLIENT_ERROR {error}"))?;
        let hash = self.hash_key(&key);
        self.shards.lock(self.shards.number(hash)).announce(&key, hash, &tags, now)
    }

    /// An `ms`, or a packet that stores, with a control key: tags are announced.
    fn execute_meta_set(&self, meta: &Meta<'_>, data: Block<'_>, cx: &mut Context<'_>) {
        count_meta(meta, cx);
        let key = self.announced_key(meta.key.bytes());
        let key = key.filter(|_| meta.set.store_verb() == StoreVerb::Set && !meta.set.has(b'C'));
        let is_announcement = key.is_some();
        let announced = match key {
            Some(key) => self.announce(key, data, cx.step.now),
            None => Err(UNKNOWN.to_owned()),
        };
        let out = &mut cx.out.bytes;
        match (announced, meta.packet) {
            (Err(error), packet) if is_announcement => Refusals::of(packet).write_not_stored(&error, out),
            (Err(error), packet) => Refusals::of(packet).write_no_name(true, &error, out),
            (Ok(()), Some(packet)) => reply::packet::done(out, packet, 0),
            (Ok(()), None) if meta.set.has(b'q') => {}
            (Ok(()), None) => status_line(out, reply::HD, meta),
        }
    }

    /// `mg md ma` with `G`, where the key is a tag, or with a control key.
    fn execute_meta(&self, request: &Request<'_>, meta: &Meta<'_>, cx: &mut Context<'_>) {
        count_meta(meta, cx);
        let flags = &meta.set;
        if flags.has(b'A') {
            // A call, or a question about a tag: it cannot be both.
            return reply::line(&mut cx.out.bytes, reply::error::INVALID_FLAG);
        }
        let asked = if flags.has(b'B') && self.shared().bump_log().is_none() {
            Err(NO_FLEET.to_owned())
        } else if flags.has(b'G') {
            let (prefix, name) = self.shared().prefixes().split(meta.key.bytes());
            let tag = Control::Tag(ControlName { prefix, name });
            self.check_names(tag).map(|()| tag)
        } else {
            self.check(meta.key.bytes())
        };
        let ControlFlags { text, at_once } = match asked
            .and_then(|control| self.obey(request, meta, control, cx))
        {
            Ok(obeyed) => obeyed,
            Err(error) => return Refusals::of(meta.packet).write_no_name(false, &error, &mut cx.out.bytes),
        };
        if let Some(packet) = meta.packet {
            // The number of a bump, or nothing.
            return match text.and_then(|text| text.parse().ok()) {
                Some(number) => reply::packet::sum(&mut cx.out.bytes, packet, number, 0),
                None => reply::packet::done(&mut cx.out.bytes, packet, 0),
            };
        }
        if flags.has(b'q') && !matches!(request, Request::MetaGet(_)) {
            return;
        }
        let out = &mut cx.out.bytes;
        let len = text.as_ref().map_or(0, String::len);
        let shown = text.filter(|_| flags.has(b'v'));
        hit(len, shown.is_some(), out);
        if matches!(request, Request::MetaGet(_)) {
            return_flags(meta, &mut TextFlags(len), out);
        } else {
            return_flags(meta, &mut CommandFlags, out);
        }
        if at_once {
            reply::token(out, AT_ONCE);
        }
        reply::end_line(out);
        if let Some(text) = shown {
            reply::line(out, &text);
        }
    }

    /// Executes a meta command with a control key like its classic form.
    fn obey(
        &self,
        request: &Request<'_>,
        meta: &Meta<'_>,
        control: Control<'_>,
        cx: &mut Context<'_>,
    ) -> Result<ControlFlags, String> {
        let flags = &meta.set;
        let one_up = !matches!(flags.mode, b'D' | b'-') && (!flags.has(b'D') || flags.delta == 1);
        match (request, control) {
            (Request::MetaGet(_), _) => {
                cx.step.counters.cmd_get.add(1);
                cx.step.counters.get_hits.add(1);
                Ok(ControlFlags { text: Some(self.tell(control, cx)), at_once: false })
            }
            (Request::MetaDelete(_), Control::Tag(tag)) => {
                let (_, at_once) = self.bump_as(tag, flags, &mut cx.step)?;
                Ok(ControlFlags { text: None, at_once })
            }
            (Request::MetaArith(_), Control::Tag(tag)) if one_up || flags.has(b'G') => {
                let (number, at_once) = self.bump_as(tag, flags, &mut cx.step)?;
                Ok(ControlFlags { text: Some(number.to_string()), at_once })
            }
            _ => Err(UNKNOWN.to_owned()),
        }
    }

    /// Invalidates a tag as the flags of a meta command say: `I` softly, and with `T` gradually. Returns the
    /// number, and whether it took effect at once instead.
    fn bump_as(
        &self,
        named: ControlName<'_>,
        flags: &MetaFlags,
        step: &mut Step<'_>,
    ) -> Result<(u64, bool), String> {
        let failed = |error: TagError| format!("CLIENT_ERROR {error}");
        let kind = if flags.has(b'I') { BumpKind::Soft } else { BumpKind::Hard };
        if !flags.has(b'T') {
            return self.bump_named(named, kind, step).map(|number| (number, false)).map_err(failed);
        }
        if kind == BumpKind::Hard {
            return Err(NOT_SOFT.to_owned());
        }
        let seconds = u64::try_from(flags.exptime).ok().filter(|s| (1..=ROLLING_FLUSH_MAX_S).contains(s));
        let seconds = seconds
            .ok_or_else(|| format!("CLIENT_ERROR gradual purge: T must be 1 to {ROLLING_FLUSH_MAX_S}"))?;
        let tag = self.tag(named).map_err(failed)?;
        self.use_tags();
        let purged = self.shared().purge(tag, seconds * 1000, step.now);
        let prefix = self.shared().prefixes().text(named.prefix);
        self.send(&SentBump::Gradual { prefix, name: named.name, seconds }, step);
        Ok((purged.number(), matches!(purged, PurgeOutcome::AtOnce(_))))
    }

    /// The text of a `get` of a control key; a `bump` and a `flush` are executed. The key must have been
    /// checked.
    fn tell(&self, control: Control<'_>, cx: &mut Context<'_>) -> String {
        match control {
            Control::Tag(ControlName { prefix, name }) => {
                let hasher = self.shared().tag_hasher();
                self.describe_tag(hasher.behind(prefix, hasher.hash_made(name)), cx.step.now)
            }
            Control::Bump(ControlName { prefix, name }) => {
                self.use_tags();
                let hasher = self.shared().tag_hasher();
                let tag = hasher.behind(prefix, hasher.hash_made(name));
                let number = self.shared().bump(tag, BumpKind::Hard, cx.step.now);
                let prefix = self.shared().prefixes().text(prefix);
                self.send(&SentBump::Tag { prefix, name, kind: BumpKind::Hard }, &mut cx.step);
                number.to_string()
            }
            Control::Nodes => {
                self.shared().bump_log().map_or_else(String::new, |log| log.nodes(cx.step.now.ms))
            }
            Control::Flush(seconds) => {
                self.send(&SentBump::Flush { seconds }, &mut cx.step);
                self.shared().flush_rolling(cx.step.now.ms, seconds * 1000).to_string()
            }
            Control::Slow => self.shared().slow().json(cx.step.now.ms),
            Control::Why(ControlName { prefix, name }) => {
                // The client's prefix is before the control key; that of the key is the same, and may be
                // there again.
                let before = self.shared().prefixes().text(prefix);
                let key = [if name.starts_with(before) { &[][..] } else { before }, name].concat();
                let named = self.why_object(&key, &cx.step);
                let (key, own) = named
                    .as_ref()
                    .map_or((&*key, None), |(name, _, tags, hash)| (&**name, Some((&**tags, *hash))));
                let hash = self.hash_key(key);
                let mut why = self.shards.lock(self.shards.number(hash)).why(key, hash, own, &cx.step);
                why.object = named.map(|(_, object, ..)| object);
                self.explain(&why)
            }
        }
    }

    /// Invalidates the tag of this name behind a prefix for a log that is followed, whatever its length: as a
    /// rule makes it from a key. If no item and no open miss has it, nothing is recorded.
    pub fn bump_followed(&self, prefix: PrefixId, name: &[u8], kind: BumpKind, now: Now) {
        let hasher = self.shared().tag_hasher();
        let tag = hasher.behind(prefix, hasher.hash_made(name));
        if !self.shared().leaves_out(tag, kind, now) {
            self.use_tags();
            self.shared().bump(tag, kind, now);
        }
    }

    /// Invalidates the tag of this name behind a prefix. Returns the number.
    pub(crate) fn bump(
        &self,
        prefix: PrefixId,
        name: &[u8],
        kind: BumpKind,
        step: &mut Step<'_>,
    ) -> Result<u64, TagError> {
        self.bump_named(ControlName { prefix, name }, kind, step)
    }

    fn bump_named(
        &self,
        named: ControlName<'_>,
        kind: BumpKind,
        step: &mut Step<'_>,
    ) -> Result<u64, TagError> {
        let tag = self.tag(named)?;
        self.use_tags();
        let number = self.shared().bump(tag, kind, step.now);
        let prefix = self.shared().prefixes().text(named.prefix);
        self.send(&SentBump::Tag { prefix, name: named.name, kind }, step);
        Ok(number)
    }

    /// Leaves a bump for the other nodes.
    fn send(&self, bump: &SentBump<'_>, step: &mut Step<'_>) {
        step.effects.bump_ticket = self.shared().send_bump(bump);
    }

    /// Obeys a gradual purge that another node has taken.
    pub fn purge_followed(&self, prefix: PrefixId, name: &[u8], seconds: u64, now: Now) {
        let hasher = self.shared().tag_hasher();
        let tag = hasher.behind(prefix, hasher.hash_made(name));
        if !self.shared().leaves_out(tag, BumpKind::Soft, now) {
            self.use_tags();
            self.shared().purge(tag, seconds * 1000, now);
        }
    }

    fn tag(&self, ControlName { prefix, name }: ControlName<'_>) -> Result<TagHash, TagError> {
        let hasher = self.shared().tag_hasher();
        Ok(hasher.behind(prefix, hasher.hash(name)?))
    }

    /// Takes the arrays' memory out of the limit, since they are in use. A failure to do so is no reason to
    /// refuse the bump.
    fn use_tags(&self) {
        if self.reserve_tags().is_err() {
            debug_assert!(false, "the limit can always be lowered");
        }
    }

    /// Number of the last bump, seconds since then, share of items older than that which are wrongly found
    /// stale.
    fn describe_tag(&self, tag: TagHash, now: Now) -> String {
        let tags = self.shared().tags();
        let last = tags.last(tag);
        let since = if last == 0 { 0 } else { self.shared().age_s(last, now.ms) };
        format!("{last} {since} {:.6}", tags.bumps().estimate(last))
    }

    /// A `get` with control keys among its keys: answers them at their places; other keys as they were found.
    #[cold]
    pub(crate) fn answer_control<'k>(
        &self,
        pending: &Pending<'_>,
        left: Option<Keys<'k>>,
        cas: bool,
        cx: &mut Context<'_>,
    ) -> PieceResult<'k> {
        cx.step.counters.get_hits.add(pending.control.len() as u64);
        let mut cuts = Vec::with_capacity(pending.control.len() + 1);
        for (_, at) in pending.control.iter().rev() {
            cuts.push(cx.out.split_off(*at));
        }
        cuts.push(cx.out.split_off(pending.from));
        // All of them are parsed before the first is executed.
        let asked: Result<Vec<_>, String> =
            pending.control.iter().map(|(key, _)| Ok((*key, self.check(key)?))).collect();
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => {
                reply::line(&mut cx.out.bytes, &error);
                return PieceResult::Done;
            }
        };
        cx.step.effects.bump_ticket = 0;
        for (key, control) in asked {
            if let Some(cut) = cuts.pop() {
                cx.out.append(cut);
            }
            let text = self.tell(control, cx);
            // These values have no CAS, but clients read one after `gets`.
            reply::value_header(&mut cx.out.bytes, key, 0, text.len(), cas.then_some(0));
            reply::line(&mut cx.out.bytes, &text);
        }
        if let Some(cut) = cuts.pop() {
            cx.out.append(cut);
        }
        if let Some(left) = left {
            return PieceResult::More(left);
        }
        cx.out.bytes.extend_from_slice(reply::END);
        let ticket = std::mem::take(&mut cx.step.effects.bump_ticket);
        let waits = || self.await_bump((ticket, false), pending.from, Refusals::Line, cx);
        (ticket > 0).then(waits).flatten().map_or(PieceResult::Done, PieceResult::Parked)
    }

    /// A get of the binary protocol with a control key.
    #[cold]
    pub(crate) fn answer_control_key(
        &self,
        asked: &AskedKey<'_>,
        refusals: Refusals,
        cx: &mut Context<'_>,
    ) -> Option<Box<ParkedRequest>> {
        cx.step.counters.get_hits.add(1);
        let from = cx.out.place();
        cx.step.effects.bump_ticket = 0;
        match self.check(asked.key) {
            Ok(control) => {
                let text = self.tell(control, cx);
                asked.begin_value(0, text.len(), 0, &mut cx.out.bytes);
                cx.out.bytes.extend_from_slice(text.as_bytes());
                asked.end_value(&mut cx.out.bytes);
            }
            Err(error) => asked.write_error(&error, &mut cx.out.bytes),
        }
        let ticket = std::mem::take(&mut cx.step.effects.bump_ticket);
        if ticket == 0 { None } else { self.await_bump((ticket, false), from, refusals, cx) }
    }

    fn control<'k>(&self, key: &'k [u8]) -> Result<Control<'k>, String> {
        self.shared().control(key).map_or_else(|| Err(UNKNOWN.to_owned()), Control::parse)
    }

    fn check<'k>(&self, key: &'k [u8]) -> Result<Control<'k>, String> {
        let control = self.control(key)?;
        self.check_names(control)?;
        Ok(control)
    }

    /// Whether the key's tag is valid, and its command allowed.
    fn check_names(&self, control: Control<'_>) -> Result<(), String> {
        match control {
            Control::Tag(named) | Control::Bump(named) => match self.tag(named) {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("CLIENT_ERROR {error}")),
            },
            Control::Flush(_) if !self.allows_flush() => Err("CLIENT_ERROR flush_all not allowed".to_owned()),
            Control::Nodes if self.shared().bump_log().is_none() => Err(NO_FLEET.to_owned()),
            Control::Flush(_) | Control::Why(_) | Control::Nodes | Control::Slow => Ok(()),
        }
    }
}

impl ReturnFlags for TextFlags {
    fn size(&self) -> Option<usize> {
        Some(self.0)
    }

    fn ttl(&self) -> Option<Option<u64>> {
        Some(None)
    }

    fn cas(&self) -> Option<u64> {
        Some(0)
    }

    fn client_flags(&self) -> Option<u32> {
        Some(0)
    }

    fn last_access(&self) -> Option<u64> {
        Some(0)
    }

    fn hit_before(&self) -> Option<bool> {
        Some(false)
    }
}

impl Engine {
    /// The object that a key names, as `@why:` shows it: its own name, what it is, its tags, and the hash of
    /// its item.
    pub(crate) fn why_object(
        &self,
        key: &[u8],
        step: &Step<'_>,
    ) -> Option<(Vec<u8>, WhyObject, Vec<u64>, u64)> {
        let objects = self.shared().objects();
        let registry = objects.as_ref()?;
        let mut buffer = Vec::new();
        let named = registry.named(key)?;
        let (type_id, method, own) = match &named {
            NamedObject::Object { type_id, key } => (*type_id, None, &**key),
            NamedObject::Call(name) => {
                let (key, _) = registry.split(name, &mut buffer).ok()?;
                (name.type_id, Some(registry.names(name.method).1), key)
            }
        };
        let item_key = item_key(type_id, own)?;
        let hash = self.hash_object(&item_key);
        let mut shard = self.shards.lock(self.shards.number(hash));
        shard.advance(step);
        let waiting = shard.busy.get(&*item_key).map(VecDeque::len);
        let found = shard.find_object(hash, &item_key, step);
        let item = found.map(|found| shard.store.item(found));
        let tree_bytes =
            found.and_then(|found| shard.store.tree(found)).map_or(0, cattlegrid_store::Tree::held_bytes);
        let tags = item.as_ref().map_or(Vec::new(), |item| item.tags().collect());
        let object = WhyObject {
            busy: waiting.is_some(),
            cas: item.map_or(0, |item| item.cas()),
            evict: if registry.is_pinned(type_id) { "never" } else { "normal" },
            exists: found.is_some(),
            key: String::from_utf8_lossy(own).into_owned(),
            method,
            size: item.map_or(0, |item| item.value_len()) + tree_bytes,
            ttl: item.and_then(|item| left(step.now, item.expiry())),
            type_name: registry.type_name(type_id),
            waiting: waiting.unwrap_or(0),
        };
        drop(shard);
        Some((registry.object_name(type_id, own)?, object, tags, hash))
    }
}
