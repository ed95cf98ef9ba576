//! The permissions of clients: rights, and a prefix that all its keys begin with.
//!
//! A request is allowed or refused as a whole, before anything of it is executed: [`Engine::allows_parsed`]
//! decides, and [`Parsed::not_allowed`] makes the refusal. Only connections whose user is limited are asked.
//!
//! # Invariants
//! * Every request, every administrative command and every flag of `mg` needs a right unless it is named here
//!   as free of one: what is added later is refused to limited users until it is decided.
//! * A key outside of the prefix is neither read, nor written, nor named in a reply.

use cattlegrid_objects::{Arguments, MethodId, ReadSet, Registry, VirtualKey, prefix_of, unescape_flag};
use cattlegrid_protocol::{Admin, Block, Meta, PacketCommand, Parsed, Refusal, Request, StoreVerb};

use crate::engine::Engine;

/// A thing that a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Read values and what is known of them.
    Read,
    /// Store, change and remove values.
    Write,
    /// Invalidate tags, and the other control keys.
    Control,
    /// Commands that are about the server as a whole.
    Admin,
}

impl Right {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Control, Self::Admin];

    /// The right's name in a rule file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Control => "control",
            Self::Admin => "admin",
        }
    }
}

/// Some of the rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RightSet(u8);

const READ: RightSet = RightSet::NONE.with(Right::Read);
const WRITE: RightSet = RightSet::NONE.with(Right::Write);
const CONTROL: RightSet = RightSet::NONE.with(Right::Control);
const ADMIN: RightSet = RightSet::NONE.with(Right::Admin);
/// Rights of commands that remove or show the keys of all clients.
const WHOLE: RightSet = ADMIN.with(Right::Control);

impl RightSet {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(0b1111);

    /// These and one more.
    #[must_use]
    pub const fn with(self, right: Right) -> Self {
        Self(self.0 | 1 << right as u8)
    }

    /// Whether `right` is among them.
    pub const fn has(self, right: Right) -> bool {
        self.0 >> right as u8 & 1 != 0
    }

    /// Whether all of `others` are among them.
    const fn has_all(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// The rights of a user, and the keys to which they apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The user's rights.
    pub set: RightSet,
    /// The prefix of the user's keys; empty: all keys.
    pub prefix: Box<[u8]>,
}

/// What a request does with a key.
#[derive(Clone, Copy)]
struct KeyUse<'r> {
    /// The rights that an ordinary key needs.
    needs: RightSet,
    /// `set`, or what does the same: by this tags are announced.
    is_set: bool,
    /// The flag `A`: text, and the data block of an `ms`.
    method: Option<(&'r [u8], Option<&'r [u8]>)>,
}

impl KeyUse<'_> {
    const fn plain(needs: RightSet) -> Self {
        Self { needs, is_set: false, method: None }
    }
}

impl Rights {
    /// Everything with all keys.
    pub fn all() -> Self {
        Self { set: RightSet::ALL, prefix: Box::default() }
    }

    /// Nothing at all.
    pub fn none() -> Self {
        Self { set: RightSet::NONE, prefix: Box::default() }
    }

    /// There is something that it may not do.
    pub fn is_limited(&self) -> bool {
        self.set != RightSet::ALL || self.has_prefix()
    }

    fn has_prefix(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// Whether the key that consists of these parts begins with the prefix.
    fn covers(&self, first: &[u8], rest: &[u8]) -> bool {
        match self.prefix.strip_prefix(first) {
            Some(left) => rest.starts_with(left),
            None => first.starts_with(&self.prefix),
        }
    }

    /// Whether a command that is not about a key is allowed.
    pub fn allows_admin(&self, admin: &Admin<'_>) -> bool {
        let needs = match admin {
            Admin::Version | Admin::Quit => return true,
            Admin::Stats(words) => match words.clone().next() {
                // Totals.
                None | Some(b"items" | b"slabs") => return true,
                Some(word)
                    if [&b"cachedump"[..], b"detail", b"leases"].iter().any(|own| word.starts_with(own)) =>
                {
                    WHOLE
                }
                Some(_) => ADMIN,
            },
            Admin::FlushAll { .. } | Admin::Watch(_) => WHOLE,
            Admin::LruCrawler(words) => match words.clone().next() {
                Some(b"metadump" | b"mgdump") => WHOLE,
                _ => ADMIN,
            },
            Admin::Verbosity { .. }
            | Admin::Shutdown { .. }
            | Admin::Lru(_)
            | Admin::Slabs(_)
            | Admin::CacheMemlimit { .. }
            | Admin::RefreshCerts
            | Admin::Debugtime(_) => ADMIN,
        };
        // They are about the keys of all.
        !self.has_prefix() && self.set.has_all(needs)
    }

    /// A control key of the namespace `space`, which is empty for the server's own. A user with a prefix may
    /// use those of namespaces behind it, as far as they are about tags and keys.
    fn allows_control(&self, space: &[u8], rest: &[u8], own: KeyUse<'_>) -> bool {
        if own.is_set
            && let Some(name) = rest.strip_prefix(b"tags:")
        {
            // To announce tags is part of writing the key.
            return self.set.has_all(WRITE) && self.covers(space, name);
        }
        let is_behind = !self.has_prefix()
            || space.starts_with(&self.prefix)
                && [&b"tag:"[..], b"bump:", b"why:"].iter().any(|kind| rest.starts_with(kind));
        self.set.has_all(CONTROL) && is_behind
    }

    /// Whether records of all clients' commands, and lists of all keys, may be shown.
    pub fn allows_whole(&self) -> bool {
        !self.has_prefix() && self.set.has_all(WHOLE)
    }
}

/// Letters of an `mg` that change nothing. `G` and `A` are looked at by themselves.
const READING: &[u8] = b"bcfhklqstvOPLGA";

/// What an `mg` does: with `T`, `N`, `R` or `E` it changes an item, or stores a lease in its place.
fn of_meta_get(meta: &Meta<'_>) -> RightSet {
    let reading = READING.iter().fold(0_u64, |letters, letter| letters | 1 << (letter - b'A'));
    if meta.set.letters & !reading == 0 { READ } else { READ.and(WRITE) }
}

impl Engine {
    /// Whether a client with these rights may make what was parsed; otherwise it must become what
    /// [`Parsed::not_allowed`] makes of it.
    #[inline]
    pub fn allows_parsed(&self, rights: &Rights, parsed: &Parsed<'_>) -> bool {
        match parsed {
            Parsed::Complete { request, .. } => self.allows(rights, request),
            Parsed::Incomplete { block: Some(refused), .. } | Parsed::Refused(refused) => {
                self.allows_refused(rights, refused)
            }
            Parsed::Incomplete { block: None, .. } => true,
        }
    }

    /// A refusal that leaves as it is a key that a client with these rights may not write.
    pub fn refused_allowed<'i>(&self, rights: &Rights, refused: Refusal<'i>) -> Refusal<'i> {
        if self.allows_refused(rights, &refused) { refused } else { refused.as_not_allowed() }
    }

    /// Whether a user may send a store that is refused anyway: its key may still lose its value.
    fn allows_refused(&self, rights: &Rights, refused: &Refusal<'_>) -> bool {
        let of_store = refused.store.as_ref().map(|store| (store.key(), store.verb == StoreVerb::Set));
        let of_key = refused.invalidate.map(|_| (refused.invalidated(), true));
        of_store.into_iter().chain(of_key).all(|(key, is_set)| {
            // What cannot be decoded names no key.
            let Some(key) = key else { return false };
            self.allows_key(rights, key.bytes(), KeyUse { is_set, ..KeyUse::plain(WRITE) })
        })
    }

    /// Whether a client with these rights may make the request.
    pub fn allows(&self, rights: &Rights, request: &Request<'_>) -> bool {
        let key = |key: &[u8], needs| self.allows_key(rights, key, KeyUse::plain(needs));
        match request {
            Request::Get(get) => {
                let needs = if get.touch.is_some() { READ.and(WRITE) } else { READ };
                get.keys.clone().all(|one| one.is_ok_and(|one| key(one, needs)))
            }
            Request::PacketGet(get) => {
                key(get.key, if get.exptime.is_some() { READ.and(WRITE) } else { READ })
            }
            Request::Store(store) => {
                let is_set = store.verb == StoreVerb::Set;
                self.allows_key(rights, store.key, KeyUse { is_set, ..KeyUse::plain(WRITE) })
            }
            Request::Arith(arith) => key(arith.key, WRITE),
            Request::Touch(touch) => key(touch.key, WRITE),
            Request::Delete(delete) => key(delete.key, WRITE),
            Request::MetaGet(meta) => self.allows_meta(rights, meta, of_meta_get(meta)),
            Request::MetaDelete(meta) | Request::MetaArith(meta) => self.allows_meta(rights, meta, WRITE),
            Request::MetaSet(meta, data) => {
                let is_set = meta.set.store_verb() == StoreVerb::Set;
                let method = meta.method().map(|text| (text, Block::here(data)));
                self.allows_key(rights, meta.key.bytes(), KeyUse { needs: WRITE, is_set, method })
            }
            Request::MetaDebug(own) => key(own.bytes(), READ),
            Request::Admin(admin) | Request::Packet(_, PacketCommand::Admin(admin)) => {
                rights.allows_admin(admin)
            }
            Request::MetaNoop
            | Request::Packet(
                _,
                PacketCommand::Noop | PacketCommand::SaslList | PacketCommand::SaslAuth { .. },
            ) => true,
        }
    }

    /// `mg md ma`, where the key may be a tag.
    fn allows_meta(&self, rights: &Rights, meta: &Meta<'_>, needs: RightSet) -> bool {
        let key = meta.key.bytes();
        if meta.set.has(b'G') || meta.set.has(b'B') {
            let (prefix, _) = self.shared().prefixes().split(key);
            let space = self.shared().prefixes().text(prefix);
            return rights.set.has_all(CONTROL) && space.starts_with(&rights.prefix);
        }
        let method = meta.method().map(|text| (text, None));
        self.allows_key(rights, key, KeyUse { needs, is_set: false, method })
    }

    fn allows_key(&self, rights: &Rights, key: &[u8], own: KeyUse<'_>) -> bool {
        if let Some((prefix, rest)) = self.shared().control(key) {
            return rights.allows_control(self.shared().prefixes().text(prefix), rest, own);
        }
        let objects = self.shared().objects();
        if let Some((registry, named)) =
            objects.as_ref().and_then(|registry| Some((registry, registry.named(key)?)))
        {
            return self.allows_object(rights, registry, &named, own);
        }
        rights.set.has_all(own.needs) && key.starts_with(&rights.prefix)
    }

    /// A call of an object's method, or an object.
    fn allows_object(
        &self,
        rights: &Rights,
        registry: &Registry,
        named: &VirtualKey<'_>,
        own: KeyUse<'_>,
    ) -> bool {
        let (mut buffer, mut texts) = (Vec::new(), Vec::new());
        let (type_id, method, key, arguments): (u16, Option<MethodId>, &[u8], Arguments<'_>) = match named {
            VirtualKey::Call(name) => match registry.split(name, &mut buffer) {
                Ok((key, arguments)) => (name.type_id, Some(name.method), key, arguments),
                Err(_) => (name.type_id, Some(name.method), &[], Arguments::none()),
            },
            VirtualKey::Object { type_id, key } => match own.method {
                None => (*type_id, None, key, Arguments::none()),
                Some((text, data)) => {
                    let mut parts = text.split(|byte| *byte == b':');
                    let method = registry.method_of(*type_id, parts.next().unwrap_or_default());
                    texts.extend(parts.map(|part| {
                        let mut text = Vec::new();
                        unescape_flag(part, &mut text);
                        text
                    }));
                    texts.extend(data.map(<[u8]>::to_vec));
                    (*type_id, method, key, Arguments::of(texts.iter().map(Vec::as_slice)))
                }
            },
        };
        let space = self.shared().prefixes().text(prefix_of(type_id));
        let covers = |key: &[u8]| rights.covers(space, key);
        let about_type = method.is_some_and(|method| registry.is_about_type(method));
        let reads_others =
            method.is_some_and(|method| registry.definition(method).reads == ReadSet::Arguments);
        if !about_type && !covers(key) || reads_others && !arguments.iter().all(covers) {
            return false;
        }
        // Without a call it is an error, or removes the object.
        let is_call = match named {
            VirtualKey::Call(_) => own.needs == READ,
            VirtualKey::Object { .. } => own.method.is_some(),
        };
        let only_reads = method.is_some_and(|method| registry.only_reads(method, arguments.iter().count()));
        let needs = match (is_call, only_reads) {
            (true, true) => READ,
            (true, false) => WRITE,
            (false, _) => own.needs,
        };
        rights.set.has_all(needs)
    }
}
