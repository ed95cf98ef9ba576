//! `ms` and `ma`.

use cattlegrid_protocol::{Meta, Packet, PacketStatus, opcode, reply};
use cattlegrid_store::{Attributes, Found, Marks, NEVER, NewValue};

use crate::event::EventKind;
use crate::reply::meta::{Refusals, ReturnFlags, count_meta, hit, return_flags, status_line};
use crate::rules::Change;
use crate::shard::arith::{AddOutcome, count_arith_miss};
use crate::shard::mg::{ItemFlags, ShownItem};
use crate::shard::put::{TagsRefused, Write, WriteData, WriteMode, WriteOutcome};
use crate::shard::{Flow, Shard};
use crate::step::{Context, Interest};

impl Shard {
    pub(crate) fn meta_set(
        &mut self,
        meta: &Meta<'_>,
        data: WriteData<'_>,
        hash: u64,
        cx: &mut Context<'_>,
    ) -> Flow {
        let (flags, len) = (&meta.set, data.len());
        let (mode, compare) = self.mode_of(meta);
        let negative = flags.has(b'n');
        let expiry = if flags.has(b'T') { cx.step.now.expiry(flags.exptime) } else { NEVER };
        let ends = if negative { self.negative_expiry(meta.key.bytes(), expiry, cx) } else { Some(expiry) };
        let Some(expiry) = ends else {
            reply::line(&mut cx.out.bytes, NEGATIVE_NEEDS_TTL);
            return Flow::Replied;
        };
        let tags = match self.tags_named(meta) {
            Ok(tags) => tags,
            Err(error) => {
                reply::line(&mut cx.out.bytes, &format!("CLIENT_ERROR {error}"));
                return Flow::Replied;
            }
        };
        let write = Write {
            mode,
            data,
            tags,
            flags: if flags.has(b'F') { flags.client_flags } else { 0 },
            expiry,
            compare,
            explicit_cas: flags.has(b'E').then_some(flags.explicit_cas),
            or_stale: flags.has(b'I'),
            vivify: flags.has(b'N').then(|| cx.step.now.expiry(flags.vivify)),
            takes_token: true,
            drops_old: meta.packet.is_none_or(Packet::is_set),
            negative,
            ..Write::set(meta.key.bytes(), hash, &[])
        };
        let (status, cas, size) = match self.write(&write, cx) {
            WriteOutcome::Stored { cas, size } => (reply::HD, cas, size),
            WriteOutcome::NotStored => (reply::NS, 0, len),
            WriteOutcome::Exists => (reply::EX, 0, len),
            WriteOutcome::NotFound => (reply::NF, 0, len),
            WriteOutcome::NoRoom(bytes) => return self.refuse(&write, bytes, Refusals::of(meta.packet), cx),
            WriteOutcome::Refused(TagsRefused::Unannounced) => match meta.packet {
                Some(packet) => {
                    reply::packet::error(&mut cx.out.bytes, packet, PacketStatus::NotStored);
                    return Flow::Replied;
                }
                None => (reply::NS, 0, len),
            },
            WriteOutcome::Refused(refused) => {
                Refusals::of(meta.packet).write_not_stored(&refused.line(), &mut cx.out.bytes);
                return Flow::Replied;
            }
        };
        count_meta(meta, cx);
        if flags.has(b'q') && status == reply::HD {
            return Flow::Replied;
        }
        if let Some(packet) = meta.packet {
            write_packet(packet, status, cas, &mut cx.out.bytes);
            return Flow::Replied;
        }
        let out = &mut cx.out.bytes;
        out.extend_from_slice(status);
        return_flags(meta, &mut StoredFlags { cas, size }, out);
        reply::end_line(out);
        Flow::Replied
    }

    /// The mode, and the CAS that the item must have. Without CAS (`-C`) memcached compares none in an
    /// append, and of packets in no store; a token of a lease counts all the same.
    fn mode_of(&mut self, meta: &Meta<'_>) -> (WriteMode, u64) {
        let set = &meta.set;
        let mode = WriteMode::of(set.store_verb());
        let compare = if set.has(b'C') { set.compare_cas } else { 0 };
        let extends = matches!(mode, WriteMode::Append | WriteMode::Prepend);
        let ignored = self.shared.hide_cas && compare != 0 && (extends || meta.packet.is_some());
        if !ignored || self.rule_of(meta.key.bytes()).is_some() {
            return (mode, compare);
        }
        let mode = match meta.packet.map(|packet| packet.opcode) {
            Some(opcode::ADD | opcode::ADDQ) => WriteMode::Add,
            Some(opcode::REPLACE | opcode::REPLACEQ) => WriteMode::Replace,
            _ if extends => mode,
            _ => WriteMode::Set,
        };
        (mode, 0)
    }

    /// The second in which a negative answer ends: `expiry`, or as its key's rule says; None: never, which is
    /// refused.
    pub(crate) fn negative_expiry(&mut self, key: &[u8], expiry: u32, cx: &Context<'_>) -> Option<u32> {
        if expiry != NEVER {
            return Some(expiry);
        }
        let seconds = self.rule_of(key)?.negative_ttl_s;
        (seconds > 0).then(|| cx.step.now.second.saturating_add(seconds))
    }

    pub(crate) fn meta_arith(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let flags = &meta.set;
        let key = meta.key.bytes();
        let incr = !matches!(flags.mode, b'D' | b'-');
        let delta = if flags.has(b'D') { flags.delta } else { 1 };
        let compare = if flags.has(b'C') { flags.compare_cas } else { 0 };
        let explicit_cas = flags.has(b'E').then_some(flags.explicit_cas);
        let mut created = false;
        let (sum, found) = match self.add(key, hash, incr, delta, compare, explicit_cas, cx) {
            AddOutcome::Is(sum, found) => (sum, found),
            AddOutcome::NotFound if flags.has(b'N') => {
                created = true;
                let initial = if flags.has(b'J') { flags.initial } else { 0 };
                match self.vivify_number(key, hash, initial, explicit_cas, cx) {
                    Some(found) => (initial, found),
                    None => return self.no_room(key.len() + 64, Refusals::of(meta.packet), cx),
                }
            }
            AddOutcome::NotFound => {
                count_arith_miss(incr, cx);
                return meta_arith_failed(reply::NF, meta, cx);
            }
            AddOutcome::Exists => return meta_arith_failed(reply::EX, meta, cx),
            AddOutcome::NotNumeric => {
                count_meta(meta, cx);
                Refusals::of(meta.packet).write(reply::error::NOT_NUMERIC, &mut cx.out.bytes);
                return Flow::Replied;
            }
            AddOutcome::NoRoom => return self.no_room(key.len() + 64, Refusals::of(meta.packet), cx),
        };
        count_meta(meta, cx);
        let item = self.store.item(found);
        let (now, cas) = (cx.step.now, self.shown_cas(item.cas()));
        let served = if created { ShownItem::Stub } else { ShownItem::Value };
        let mut shown = SumFlags(ItemFlags { item, flags, now, served, cas, expiry: None, recache: false });
        let quiet = flags.has(b'q');
        let kept = cx.out.bytes.len();
        if let Some(packet) = meta.packet {
            if created {
                self.store.set_expiry(hash, found, now.expiry(flags.vivify));
            }
            reply::packet::sum(&mut cx.out.bytes, packet, sum, cas);
            return Flow::Replied;
        }
        let mut digits = Vec::new();
        reply::number(&mut digits, sum);
        let out = &mut cx.out.bytes;
        hit(digits.len(), flags.has(b'v'), out);
        return_flags(meta, &mut shown, out);
        reply::end_line(out);
        if flags.has(b'v') {
            out.extend_from_slice(&digits);
            reply::end_line(out);
        }
        if quiet {
            out.truncate(kept);
        }
        if let Some(expiry) = shown.0.expiry {
            self.store.set_expiry(hash, found, expiry);
        }
        Flow::Replied
    }

    fn vivify_number(
        &mut self,
        key: &[u8],
        hash: u64,
        initial: u64,
        explicit_cas: Option<u64>,
        cx: &mut Context<'_>,
    ) -> Option<Found> {
        let tags = self.rule_of(key).map(|ruled| ruled.tags).unwrap_or_default();
        let announced = self.announced.of(hash, cx.step.now.ms);
        let tags = announced.and_then(|(announced, _)| tags.union(announced).ok()).unwrap_or(tags);
        self.shared.note_named(tags.hashes(), cx.step.now.ms);
        let (cas, stamp) = self.numbers(explicit_cas);
        let attributes = Attributes {
            accessed: cx.step.now.second,
            cas,
            stamp,
            tags: tags.hashes(),
            marks: Marks::EDITED,
            ..Attributes::default()
        };
        let mut digits = Vec::new();
        reply::number(&mut digits, initial);
        self.store.put(hash, key, &attributes, NewValue::Inline([&digits, &[]])).ok()?;
        cx.note(Interest::MUTATIONS, key, || EventKind::Store {
            status: "stored",
            command: "add",
            ttl: 0,
            size: digits.len(),
            classic: false,
        });
        self.changed(key, hash, true, cx);
        self.cascade(key, hash, Change::Incr, cx.step.now);
        self.find(hash, key, &cx.step)
    }
}

fn meta_arith_failed(status: &[u8], meta: &Meta<'_>, cx: &mut Context<'_>) -> Flow {
    count_meta(meta, cx);
    status_line(&mut cx.out.bytes, status, meta);
    Flow::Replied
}

/// The reply to a store that came as a packet.
fn write_packet(packet: Packet, status: &[u8], cas: u64, out: &mut Vec<u8>) {
    let status = match (status, packet.opcode) {
        (reply::HD, _) => return reply::packet::done(out, packet, cas),
        (reply::EX, _) | (reply::NS, opcode::ADD | opcode::ADDQ) => PacketStatus::Exists,
        (reply::NF, _) | (reply::NS, opcode::REPLACE | opcode::REPLACEQ) => PacketStatus::NotFound,
        _ => PacketStatus::NotStored,
    };
    reply::packet::error(out, packet, status);
}

/// A negative answer without a time to live would hide the key forever.
const NEGATIVE_NEEDS_TTL: &str = "CLIENT_ERROR negative answer needs a TTL";

/// The result of an `ms`.
struct StoredFlags {
    cas: u64,
    size: usize,
}

impl ReturnFlags for StoredFlags {
    fn size(&self) -> Option<usize> {
        Some(self.size)
    }

    fn cas(&self) -> Option<u64> {
        Some(self.cas)
    }
}

/// The sum of an `ma`: an item of which only the CAS and the time to live are shown.
struct SumFlags<'a>(ItemFlags<'a>);

impl ReturnFlags for SumFlags<'_> {
    fn act(&mut self, letter: u8) {
        if letter != b'R' {
            self.0.act(letter);
        }
    }

    fn ttl(&self) -> Option<Option<u64>> {
        self.0.ttl()
    }

    fn cas(&self) -> Option<u64> {
        self.0.cas()
    }
}
