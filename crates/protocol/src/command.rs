//! Requests: one enum for the classic text and the meta protocol, and the result of parsing.
//!
//! # Invariant
//! A request is only built valid: key lengths, numbers and flag letters are checked by the parser.

use crate::line::{FlagTokens, Keys, Words};
use crate::packet::{Packet, PacketStatus};
use crate::reply::error;

/// Longest key in bytes.
pub const KEY_MAX: usize = 250;

/// One complete command, its data block included. Borrows the input buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get gets gat gats`.
    Get(Get<'a>),
    /// `set add replace append prepend cas`.
    Store(Store<'a>),
    /// `incr decr`.
    Arith(Arith<'a>),
    /// `touch`.
    Touch(Touch<'a>),
    /// `delete`.
    Delete(Delete<'a>),
    /// `mg`.
    MetaGet(Meta<'a>),
    /// `ms` and its data block.
    MetaSet(Meta<'a>, Block<'a>),
    /// `md`.
    MetaDelete(Meta<'a>),
    /// `ma`.
    MetaArith(Meta<'a>),
    /// `mn`.
    MetaNoop,
    /// `me key [b]`.
    MetaDebug(MetaKey<'a>),
    /// A command that is not about a key.
    Admin(Admin<'a>),
    /// A get of the binary protocol.
    PacketGet(PacketGet<'a>),
    /// A command of the binary protocol that is not about a key.
    Packet(Packet, PacketCommand<'a>),
}

impl<'a> Request<'a> {
    /// The data block, if it has one.
    #[inline]
    pub fn block(&self) -> Option<Block<'a>> {
        match self {
            Self::Store(store) => Some(store.data),
            Self::MetaSet(_, data) => Some(*data),
            _ => None,
        }
    }
}

/// `get gets gat gats`: one or more keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get<'a> {
    /// The keys, at least one. The parser refuses a line with a key that is too long, so the keys of a
    /// parsed request are all valid.
    pub keys: Keys<'a>,
    /// `gets gats`: the reply carries CAS numbers.
    pub cas: bool,
    /// `gat gats`: the new exptime.
    pub touch: Option<i64>,
}

/// `get getk gat gatk` of the binary protocol, quiet or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketGet<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// `gat gatk`: the new exptime, of 32 bits without a sign.
    pub exptime: Option<i64>,
    /// The packet that the get came as.
    pub packet: Packet,
}

/// A command of the binary protocol that is not about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PacketCommand<'a> {
    /// `noop`.
    Noop,
    /// `version quit flush stat`.
    Admin(Admin<'a>),
    /// Which mechanisms there are to log in.
    SaslList,
    /// A step of logging in.
    SaslAuth {
        /// The mechanism, such as `PLAIN`.
        mechanism: &'a [u8],
        /// The bytes that the client sends in this step.
        data: &'a [u8],
        /// The first step.
        first: bool,
    },
}

/// Which storing command, and its CAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreVerb {
    /// Store, whether the key is present or not.
    Set,
    /// Store only if absent.
    Add,
    /// Store only if present.
    Replace,
    /// After the present value; flags and exptime of the command are ignored.
    Append,
    /// Before the present value; flags and exptime of the command are ignored.
    Prepend,
    /// Store if the item still has this CAS.
    Cas(u64),
}

/// `set add replace append prepend cas` with the data block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which storing command.
    pub verb: StoreVerb,
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// Client flags.
    pub flags: u32,
    /// 0 never, negative already expired, up to 30 days relative, above that a Unix time. The lower 32 bits
    /// of what was sent.
    pub exptime: i64,
    /// The data block.
    pub data: Block<'a>,
    /// No reply wanted.
    pub noreply: bool,
}

/// The data block of a store, without its CRLF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block<'a> {
    /// The block's bytes, which follow the line.
    Here(&'a [u8]),
    /// This many bytes, which were received elsewhere: see [`parse_apart`](crate::parse_apart).
    Apart(usize),
}

impl<'a> Block<'a> {
    /// Bytes of the block.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no use for it")]
    pub fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Apart(len) => *len,
        }
    }

    /// The block's bytes; `None`: they were received elsewhere.
    #[inline]
    pub fn here(&self) -> Option<&'a [u8]> {
        if let Self::Here(bytes) = self { Some(bytes) } else { None }
    }
}

/// `incr decr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arith<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// `incr` or `decr`.
    pub incr: bool,
    /// The amount.
    pub delta: u64,
    /// No reply wanted.
    pub noreply: bool,
}

/// `touch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The exptime of [`Store::exptime`], but 32 bits as sent.
    pub exptime: i64,
    /// No reply wanted.
    pub noreply: bool,
    /// The packet, if the touch came by the binary protocol.
    pub packet: Option<Packet>,
}

/// `delete`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// No reply wanted.
    pub noreply: bool,
}

/// The common part of `mg ms md ma`: key and flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The key, decoded if it came as base64.
    pub key: MetaKey<'a>,
    /// The flag tokens in the order they were sent, for the reply's return flags.
    pub flags: FlagTokens<'a>,
    /// Which letters were sent, and the numbers that came with them.
    pub set: MetaFlags,
    /// The packet, if the command came by the binary protocol; then `flags` is empty.
    pub packet: Option<Packet>,
}

impl<'a> Meta<'a> {
    /// The text behind the letter `A`, which names a method and its arguments, still escaped. None: the flag
    /// was not sent.
    #[inline]
    pub fn method(&self) -> Option<&'a [u8]> {
        if !self.set.has(b'A') {
            return None;
        }
        let mut flags = self.flags;
        flags.find_map(|token| token.strip_prefix(b"A"))
    }
}

impl Meta<'_> {
    /// A copy that may outlive the request's bytes.
    pub fn to_owned(&self) -> OwnedMeta {
        OwnedMeta {
            text: [self.key.sent, self.flags.rest].concat().into(),
            key_len: self.key.sent.len(),
            decoded: self.key.decoded.clone().map(Box::new),
            set: self.set,
            packet: self.packet,
        }
    }
}

/// A copy of a [`Meta`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedMeta {
    /// The key as sent, and the flags.
    text: Box<[u8]>,
    key_len: usize,
    decoded: Option<Box<DecodedKey>>,
    set: MetaFlags,
    packet: Option<Packet>,
}

impl OwnedMeta {
    /// The key, decoded.
    pub fn key(&self) -> &[u8] {
        match &self.decoded {
            Some(decoded) => &decoded.bytes[..usize::from(decoded.len)],
            None => &self.text[..self.key_len],
        }
    }

    /// The copied command.
    pub fn as_meta(&self) -> Meta<'_> {
        let (sent, rest) = self.text.split_at(self.key_len);
        let decoded = self.decoded.as_deref().cloned();
        Meta {
            key: MetaKey { sent, decoded },
            flags: FlagTokens { rest },
            set: self.set,
            packet: self.packet,
        }
    }

    /// Bytes of memory that it owns outside of the struct.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.decoded.as_ref().map_or(0, |_| size_of::<DecodedKey>())
    }
}

/// A meta command's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaKey<'a> {
    /// The key as sent (base64 if `binary`); `k` returns it.
    pub sent: &'a [u8],
    /// The decoded bytes of a base64 key; `None` when the key was sent plain.
    pub(crate) decoded: Option<DecodedKey>,
}

/// Room for a decoded base64 key: 250 characters hold at most 187 bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DecodedKey {
    pub(crate) len: u8,
    pub(crate) bytes: [u8; 188],
}

impl MetaKey<'_> {
    /// The key's own bytes, as the store knows it.
    pub fn bytes(&self) -> &[u8] {
        match &self.decoded {
            Some(d) => &d.bytes[..usize::from(d.len)],
            None => self.sent,
        }
    }

    /// Sent as base64 (`b`).
    pub fn is_binary(&self) -> bool {
        self.decoded.is_some()
    }
}

impl std::fmt::Debug for DecodedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", &self.bytes[..usize::from(self.len)])
    }
}

/// Which flag letters a meta command has, and their numbers (already checked).
///
/// A number is meaningful only where [`MetaFlags::has`] says that its letter was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetaFlags {
    /// Bit n: the letter `'A' + n` was sent (`'A'..='z'`).
    pub letters: u64,
    /// `C`: compare CAS.
    pub compare_cas: u64,
    /// `E`: the CAS to give the item.
    pub explicit_cas: u64,
    /// `F`: client flags.
    pub client_flags: u32,
    /// `T`: exptime, as sent.
    pub exptime: i64,
    /// `N`: vivify with this exptime, as sent.
    pub vivify: i64,
    /// `R`: recache when the remaining TTL is below this, as sent.
    pub recache: i64,
    /// `J`: initial value.
    pub initial: u64,
    /// `D`: delta.
    pub delta: u64,
    /// `M`: the mode letter as sent; on `ms` one of `E A P R S`, on `ma` one of `I + D -`.
    pub mode: u8,
}

impl Get<'_> {
    /// This command for the remaining keys `keys`.
    #[must_use]
    pub fn with_keys<'k>(&self, keys: Keys<'k>) -> Get<'k> {
        Get { keys, cas: self.cas, touch: self.touch }
    }
}

impl MetaFlags {
    /// Whether the letter was sent.
    #[inline]
    pub fn has(&self, letter: u8) -> bool {
        debug_assert!((b'A'..=b'z').contains(&letter));
        self.letters >> (letter - b'A') & 1 != 0
    }

    /// The classic command that does the same as this `ms`.
    pub fn store_verb(&self) -> StoreVerb {
        match self.mode {
            b'E' => StoreVerb::Add,
            b'A' => StoreVerb::Append,
            b'P' => StoreVerb::Prepend,
            _ if self.has(b'C') => StoreVerb::Cas(self.compare_cas),
            b'R' => StoreVerb::Replace,
            _ => StoreVerb::Set,
        }
    }
}

/// Commands that are not about a key. Arguments stay unparsed words where only the server knows their
/// meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admin<'a> {
    /// `version`.
    Version,
    /// `verbosity <n>`; answers `OK`. The level, if it was a number.
    Verbosity {
        /// New log level.
        level: Option<u32>,
        /// No reply wanted.
        noreply: bool,
    },
    /// `flush_all [delay]`.
    FlushAll {
        /// Seconds (or a Unix time, as exptime) until it takes effect; 0 is now.
        delay: i64,
        /// No reply wanted.
        noreply: bool,
    },
    /// `stats [words]`.
    Stats(Words<'a>),
    /// `quit`.
    Quit,
    /// `shutdown [graceful]`.
    Shutdown {
        /// Let connections finish.
        graceful: bool,
    },
    /// `watch [words]`.
    Watch(Words<'a>),
    /// `lru_crawler <words>`.
    LruCrawler(Words<'a>),
    /// `lru <words>`.
    Lru(Words<'a>),
    /// `slabs <words>`.
    Slabs(Words<'a>),
    /// `cache_memlimit <MiB>`.
    CacheMemlimit {
        /// New limit in MiB.
        mebibytes: u64,
        /// No reply wanted.
        noreply: bool,
    },
    /// `refresh_certs`.
    RefreshCerts,
    /// `debugtime <seconds>`, known only when the server was started with it.
    Debugtime(Words<'a>),
}

/// The result of parsing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not a whole command yet. Parse again with at least `need` bytes: more than the input's length; a lower
    /// bound for a line, whose end may be anywhere; exact for a data block.
    Incomplete {
        /// Bytes wanted in all, from the start of this input.
        need: usize,
        /// `None`: the line has not ended, and the command is not known. Otherwise a storing command whose
        /// line is complete and whose data block is not: this is how to refuse it when there is no memory to
        /// wait for the rest. The refusal uses all of the input.
        block: Option<Refusal<'a>>,
    },
    /// A request, `used` bytes long with its line end and data block.
    Complete {
        /// The request.
        request: Request<'a>,
        /// Bytes of the input it took.
        used: usize,
    },
    /// Not a request that can be executed.
    Refused(Refusal<'a>),
}

/// How to answer a line that is not a valid request, and where the next one starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// The reply, without CRLF; empty: no reply (a quiet or `noreply` command).
    pub reply: &'static str,
    /// Bytes of the input to drop.
    pub used: usize,
    /// Bytes still to come that belong to the refused command's data block: drop them too.
    pub swallow: u64,
    /// Close the connection after the reply.
    pub close: bool,
    /// The key of a refused store whose old value must not be served any more, see [`Refusal::drops_old`], or
    /// whose lease has ended. As sent; see [`Refusal::invalidated`].
    pub invalidate: Option<&'a [u8]>,
    /// `invalidate` is base64.
    pub invalidate_binary: bool,
    /// A store that is refused for its size or for lack of memory.
    pub store: Option<StoreRefusal<'a>>,
    /// `C` of a refused `ms`: its value was computed for the miss with this number.
    pub token: Option<u64>,
    /// The packet and the status of its reply, if it is one of the binary protocol; `reply` is empty then.
    pub packet: Option<(Packet, PacketStatus)>,
    /// The reason; known also when there is no reply.
    pub cause: RefusalCause,
}

/// A store that is refused although its line is valid, for logs and watchers of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreRefusal<'a> {
    /// The store's key as sent; see [`StoreRefusal::key`].
    pub sent_key: &'a [u8],
    /// The key is base64.
    pub is_binary: bool,
    /// Which storing command.
    pub verb: StoreVerb,
    /// By a classic command.
    pub classic: bool,
}

impl<'a> StoreRefusal<'a> {
    /// The key, decoded.
    pub fn key(&self) -> Option<MetaKey<'a>> {
        if self.is_binary { MetaKey::base64(self.sent_key) } else { Some(MetaKey::plain(self.sent_key)) }
    }
}

/// Why a line is refused, for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// The line breaks the grammar.
    Grammar,
    /// The line's value is larger than [`crate::Limits::max_item_bytes`] allows.
    TooLarge,
    /// There is no memory to wait for its data block.
    NoMemory,
    /// The client may not send this command, whose name this is.
    NotAllowed(&'static str),
}

impl RefusalCause {
    pub(crate) fn reply(self) -> &'static str {
        match self {
            Self::Grammar => error::BAD_FORMAT,
            Self::TooLarge => error::TOO_LARGE,
            Self::NoMemory => error::OUT_OF_MEMORY,
            Self::NotAllowed(_) => error::NOT_ALLOWED,
        }
    }
}

impl<'a> Refusal<'a> {
    /// A refusal for breaking the grammar, with nothing else set.
    pub(crate) fn with(reply: &'static str, used: usize) -> Self {
        Self {
            reply,
            used,
            swallow: 0,
            close: false,
            invalidate: None,
            invalidate_binary: false,
            store: None,
            token: None,
            packet: None,
            cause: RefusalCause::Grammar,
        }
    }

    /// The old value of `invalidate` must go. Not that of a binary `add` or `replace`, as in memcached.
    pub fn drops_old(&self) -> bool {
        self.packet.is_none_or(|(packet, _)| packet.is_set())
    }

    /// `invalidate`, decoded.
    pub fn invalidated(&self) -> Option<MetaKey<'a>> {
        let key = self.invalidate?;
        if self.invalidate_binary { MetaKey::base64(key) } else { Some(MetaKey::plain(key)) }
    }
}
