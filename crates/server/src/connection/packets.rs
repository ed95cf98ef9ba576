//! The binary protocol on a connection: which protocol it speaks, and the commands that are not about keys.
//!
//! # Invariants
//! * The first byte of a connection decides what it speaks, and that stays so.

use cattlegrid_config::Protocol;
use cattlegrid_protocol::{
    Admin, BINARY_MAGIC, HEADER_BYTES, KEY_MAX, Limits, Packet, PacketCommand, PacketStatus, Parsed, Words,
    parse_apart, parse_from, parse_packet, parse_packet_apart, reply,
};

use super::{Connection, Reason};
use crate::commands;
use crate::log;
use crate::state::{Doing, Shared};
use crate::stats;
use crate::turn::Turn;

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Speaks {
    /// Nothing has come.
    #[default]
    Unknown,
    Text,
    Binary,
}

impl Speaks {
    /// What a connection speaks whose first byte is `first`.
    pub(super) fn by(first: u8, shared: &Shared) -> Self {
        match shared.settings.protocol {
            Protocol::Binary => Self::Binary,
            Protocol::Auto if first == BINARY_MAGIC => Self::Binary,
            Protocol::Auto | Protocol::Ascii => Self::Text,
        }
    }

    #[inline]
    pub(super) fn parse<'i>(self, input: &'i [u8], scanned: usize, limits: &Limits) -> Parsed<'i> {
        match self {
            Self::Binary => parse_packet(input, limits),
            _ => parse_from(input, scanned, limits),
        }
    }

    /// Parses the beginning of a store, up to its data block.
    pub(super) fn parse_apart<'i>(self, head: &'i [u8], is_ended: bool, limits: &Limits) -> Parsed<'i> {
        match self {
            Self::Binary => parse_packet_apart(head, limits),
            _ => parse_apart(head, is_ended, limits),
        }
    }

    /// Bytes that follow a data block.
    pub(super) fn end_bytes(self) -> usize {
        if self == Self::Binary { 0 } else { 2 }
    }

    /// Bytes of the command at the front of `input` up to its data block, if it may have one and they have come.
    pub(super) fn head_bytes(self, input: &[u8]) -> Option<usize> {
        if self == Self::Binary {
            let header = input.first_chunk::<HEADER_BYTES>()?;
            let key = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let head = HEADER_BYTES + usize::from(header[4]) + key;
            return (key <= KEY_MAX && input.len() >= head).then_some(head);
        }
        let line = &input[..input.len().min(cattlegrid_protocol::LINE_MAX + 1)];
        memchr::memchr(b'\n', line).map(|lf| lf + 1)
    }
}

impl Connection {
    /// A command that is not about a key.
    pub(super) fn packet_command(
        &mut self,
        packet: Packet,
        command: &PacketCommand<'_>,
        turn: &mut Turn<'_>,
    ) {
        self.info.set_doing(Doing::Execute);
        match command {
            PacketCommand::Noop => reply::packet::done(&mut turn.out.bytes, packet, 0),
            PacketCommand::Admin(admin) => self.packet_admin(packet, admin, turn),
            PacketCommand::SaslList if turn.shared.settings.auth_binary() => {
                reply::packet::text(&mut turn.out.bytes, packet, "PLAIN");
            }
            PacketCommand::SaslAuth { mechanism, data, first } if turn.shared.settings.auth_binary() => {
                self.log_in(packet, mechanism, data, *first, turn);
            }
            PacketCommand::SaslList | PacketCommand::SaslAuth { .. } => {
                reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::UnknownCommand);
            }
        }
    }

    fn packet_admin(&mut self, packet: Packet, admin: &Admin<'_>, turn: &mut Turn<'_>) {
        let from = turn.out.bytes.len();
        let mut admin = admin.clone();
        if let Admin::Stats(words) = &mut admin {
            match which_stats(words.text(), turn.shared.settings.dump) {
                Some(known) => *words = Words::of(known),
                None => return reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::NotFound),
            }
        }
        match admin {
            Admin::Version => return reply::packet::text(&mut turn.out.bytes, packet, stats::VERSION),
            Admin::FlushAll { .. } if !turn.shared.settings.flush => {
                turn.counters.cmd_flush.add(1);
                return reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::Unauthenticated);
            }
            _ => {}
        }
        match commands::admin(&admin, self.token, turn) {
            commands::After::Close => self.close(Reason::Quit),
            commands::After::GoOn => {}
            commands::After::Watch(_) | commands::After::Dump(_) => unreachable!("these have no packet"),
        }
        // What was written for a text client.
        let text = turn.out.bytes.split_off(from);
        let out = &mut turn.out.bytes;
        match admin {
            Admin::Stats(words) => write_stats(packet, words, &text, out),
            _ => reply::packet::done(out, packet, 0),
        }
    }

    /// Logs why a client that breaks the grammar is left.
    pub(super) fn log_broken(&self) {
        let what = if self.speaks == Speaks::Binary { "binary" } else { "text" };
        log::info(format_args!("{}: closed, not a client of memcached's {what} protocol", self.info.peer()));
    }
}

/// The words of a text client for these statistics. As memcached it looks only at how some names begin.
fn which_stats(key: &[u8], may_dump: bool) -> Option<&[u8]> {
    let detail = key.strip_prefix(b"detail");
    let begins = |known: &'static [u8]| key.starts_with(known).then_some(known);
    match detail {
        Some(_) if !may_dump => None,
        Some(rest) if rest.starts_with(b" dump") => Some(b"detail dump"),
        Some(rest) if rest.starts_with(b" on") => Some(b"detail on"),
        Some(rest) if rest.starts_with(b" off") => Some(b"detail off"),
        Some(_) => None,
        // Lists of keys and of connections are for text clients.
        None if key.contains(&b' ') || key == b"cachedump" || key == b"conns" => None,
        None => begins(b"reset").or_else(|| begins(b"settings")).or(Some(key)),
    }
}

/// Statistics as packets, from the lines of a text client.
fn write_stats(packet: Packet, words: Words<'_>, text: &[u8], out: &mut Vec<u8>) {
    if words.text() == b"detail dump" {
        let dump = text.strip_suffix(reply::END).unwrap_or(text);
        reply::packet::stat(out, packet, b"detailed", dump);
        return reply::packet::end_of_stats(out, packet);
    }
    for line in text.split(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(stat) = line.strip_prefix(b"STAT ") {
            let name = stat.iter().position(|b| *b == b' ').unwrap_or(stat.len());
            let (name, value) = stat.split_at(name);
            reply::packet::stat(out, packet, name, value.strip_prefix(b" ").unwrap_or(value));
        } else if line == b"ERROR" {
            return reply::packet::error(out, packet, PacketStatus::NotFound);
        }
    }
    reply::packet::end_of_stats(out, packet);
}
