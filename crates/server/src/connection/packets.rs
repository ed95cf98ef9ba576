//! The binary protocol on a connection: the commands that are not about keys.

use cattlegrid_protocol::{Admin, Packet, PacketCommand, PacketStatus, Words, reply};

use super::input::Speaks;
use super::{Connection, Reason};
use crate::commands;
use crate::connection::info::Activity;
use crate::log;
use crate::stats;
use crate::turns::Turn;

impl Connection {
    /// A command that is not about a key.
    pub(super) fn packet_command(
        &mut self,
        packet: Packet,
        command: &PacketCommand<'_>,
        turn: &mut Turn<'_>,
    ) {
        self.show_activity(Activity::Execute);
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
            commands::ConnectionAction::Close => self.close(Reason::Quit),
            commands::ConnectionAction::GoOn => {}
            // Its lines are made into packets as a whole.
            commands::ConnectionAction::Dump(mut dump) => {
                while !dump.resume(&turn.shared.engine, turn.now, &mut turn.out.bytes) {}
            }
            commands::ConnectionAction::Watch(_) => unreachable!("it has no packet"),
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
        let what = if self.input.speaks == Speaks::Binary { "binary" } else { "text" };
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
