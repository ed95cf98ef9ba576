//! Refusing a request that is whole and right, since its client may not make it.

use crate::command::{Admin, PacketCommand, Parsed, Refusal, RefusalCause, Request, StoreVerb};
use crate::packet::{Packet, PacketStatus, opcode};
use crate::reply::error;

impl Request<'_> {
    /// What it is called, as its client wrote it; of a packet what the text protocol calls the same.
    pub fn command(&self) -> &'static str {
        match self {
            Self::Get(get) => match (get.touch.is_some(), get.cas) {
                (false, false) => "get",
                (false, true) => "gets",
                (true, false) => "gat",
                (true, true) => "gats",
            },
            Self::Store(store) => store.verb.command(),
            Self::Arith(arith) => {
                if arith.incr {
                    "incr"
                } else {
                    "decr"
                }
            }
            Self::Touch(_) => "touch",
            Self::Delete(_) => "delete",
            Self::MetaGet(_) => "mg",
            Self::MetaSet(meta, _) => meta.packet.map_or("ms", |_| meta.set.store_verb().command()),
            Self::MetaDelete(meta) => meta.packet.map_or("md", |_| "delete"),
            Self::MetaArith(meta) => {
                meta.packet.map_or("ma", |_| if meta.set.mode == b'D' { "decr" } else { "incr" })
            }
            Self::MetaNoop => "mn",
            Self::MetaDebug(_) => "me",
            Self::PacketGet(get) => {
                if get.exptime.is_some() {
                    "gat"
                } else {
                    "get"
                }
            }
            Self::Admin(admin) | Self::Packet(_, PacketCommand::Admin(admin)) => admin.command(),
            Self::Packet(_, PacketCommand::Noop) => "noop",
            Self::Packet(_, PacketCommand::SaslList | PacketCommand::SaslAuth { .. }) => "sasl",
        }
    }

    /// No error is sent either: `noreply`.
    fn is_silent(&self) -> bool {
        match self {
            Self::Store(store) => store.noreply,
            Self::Arith(arith) => arith.noreply,
            Self::Touch(touch) => touch.noreply,
            Self::Delete(delete) => delete.noreply,
            Self::Admin(admin) => match admin {
                Admin::Verbosity { noreply, .. }
                | Admin::FlushAll { noreply, .. }
                | Admin::CacheMemlimit { noreply, .. } => *noreply,
                Admin::Lru(words) | Admin::Slabs(words) | Admin::LruCrawler(words) => words.noreply(),
                _ => false,
            },
            _ => false,
        }
    }

    /// The packet as which it came, if it did.
    fn packet(&self) -> Option<Packet> {
        match self {
            Self::Touch(touch) => touch.packet,
            Self::MetaGet(meta) | Self::MetaSet(meta, _) | Self::MetaDelete(meta) | Self::MetaArith(meta) => {
                meta.packet
            }
            Self::PacketGet(get) => Some(get.packet),
            Self::Packet(packet, _) => Some(*packet),
            _ => None,
        }
    }
}

impl StoreVerb {
    /// The classic command.
    pub fn command(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas(_) => "cas",
        }
    }
}

impl Admin<'_> {
    /// What it is called.
    pub fn command(&self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Verbosity { .. } => "verbosity",
            Self::FlushAll { .. } => "flush_all",
            Self::Stats(_) => "stats",
            Self::Quit => "quit",
            Self::Shutdown { .. } => "shutdown",
            Self::Watch(_) => "watch",
            Self::LruCrawler(_) => "lru_crawler",
            Self::Lru(_) => "lru",
            Self::Slabs(_) => "slabs",
            Self::CacheMemlimit { .. } => "cache_memlimit",
            Self::RefreshCerts => "refresh_certs",
            Self::Debugtime(_) => "debugtime",
        }
    }
}

impl Parsed<'_> {
    /// The refusal of what a client may not make; a part of a request stays as it is.
    #[cold]
    #[must_use]
    pub fn not_allowed(self) -> Self {
        match self {
            Self::Complete { ref request, used } => Self::Refused(Refusal::not_allowed(request, used)),
            Self::Incomplete { block: Some(refused), .. } | Self::Refused(refused) => {
                Self::Refused(refused.as_not_allowed())
            }
            Self::Incomplete { block: None, .. } => self,
        }
    }
}

impl<'a> Refusal<'a> {
    /// The refusal of a whole request of `used` bytes. With `noreply` nothing is sent, nor for a quiet get of
    /// the binary protocol: clients take an error among quiet gets for the reply to another key. Everything
    /// else is told, quiet or not.
    #[cold]
    pub fn not_allowed(request: &Request<'a>, used: usize) -> Self {
        let packet = request.packet();
        let is_quiet_get = packet.is_some_and(|packet| {
            matches!(packet.opcode, opcode::GETQ | opcode::GETKQ | opcode::GATQ | opcode::GATKQ)
        });
        let is_silent = request.is_silent() || is_quiet_get;
        Self {
            packet: packet.filter(|_| !is_silent).map(|packet| (packet, PacketStatus::NotStored)),
            cause: RefusalCause::NotAllowed(request.command()),
            ..Self::with(if is_silent || packet.is_some() { "" } else { error::NOT_ALLOWED }, used)
        }
    }

    /// A refusal of a store that has not come whole, or is refused for another reason as well: its key stays
    /// as it is.
    #[cold]
    #[must_use]
    pub fn as_not_allowed(self) -> Self {
        let command = self.store.map_or("set", |store| match self.packet {
            None if !store.classic => "ms",
            _ => store.verb.command(),
        });
        let is_silent = self.reply.is_empty() || self.packet.is_some();
        Self {
            reply: if is_silent { "" } else { error::NOT_ALLOWED },
            invalidate: None,
            store: None,
            token: None,
            packet: self.packet.map(|(packet, _)| (packet, PacketStatus::NotStored)),
            cause: RefusalCause::NotAllowed(command),
            ..self
        }
    }
}
