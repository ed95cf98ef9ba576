//! A key that a get asks for, and the form of its reply: one decision, rendered per protocol.

use cattlegrid_herd::AskMode;
use cattlegrid_protocol::{Get, Meta, OwnedMeta, Packet, PacketGet, reply};

use crate::counters::Counters;
use crate::delivered::Verdict;
use crate::query::Query;
use crate::reply::meta::{failed_line, is_explicit, lease_reply, status_line, value_reply};
use crate::step::Output;

/// A key of a get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedKey<'k> {
    pub(crate) key: &'k [u8],
    /// The new exptime of a `gat`.
    pub(crate) touch: Option<i64>,
    pub(crate) form: GetForm<'k>,
}

/// The form of its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GetForm<'k> {
    /// A `VALUE` block, with its CAS or without; nothing for a miss. `is_part`: see [`AskedKey::of_part`].
    Classic { cas: bool, is_part: bool },
    /// A packet.
    Packet(Packet),
    /// The reply to this `mg`.
    Meta(&'k Meta<'k>),
}

impl<'k> AskedKey<'k> {
    /// A key of a classic get.
    #[inline]
    pub(crate) fn classic(get: &Get<'_>, key: &'k [u8]) -> Self {
        Self { key, touch: get.touch, form: GetForm::Classic { cas: get.cas, is_part: false } }
    }

    #[inline]
    pub(crate) fn packet(get: &PacketGet<'k>) -> Self {
        Self { key: get.key, touch: get.exptime, form: GetForm::Packet(get.packet) }
    }

    pub(crate) fn meta(meta: &'k Meta<'k>) -> Self {
        let touch = meta.set.has(b'T').then_some(meta.set.exptime);
        Self { key: meta.key.bytes(), touch, form: GetForm::Meta(meta) }
    }

    pub(crate) fn touches(&self) -> bool {
        self.touch.is_some()
    }

    /// Counts it this many times.
    #[inline]
    pub(crate) fn count(&self, times: u64, counters: &Counters) {
        if !self.touches() {
            return counters.cmd_get.add(times);
        }
        counters.cmd_touch.add(times);
        if !matches!(self.form, GetForm::Packet(_)) {
            counters.cmd_get.add(times);
            counters.get_touches.add(times);
        }
    }

    /// The question to the herd.
    pub(crate) fn query(&self, hash: u64) -> Query<'k> {
        let how = if self.takes_no_error() { AskMode::Quiet } else { AskMode::Plain };
        Query { how, ..Query::plain(self.key, hash, self.touches()) }
    }

    fn takes_no_error(&self) -> bool {
        match self.form {
            GetForm::Packet(packet) => packet.is_quiet(),
            GetForm::Classic { is_part, .. } => is_part,
            GetForm::Meta(meta) => meta.set.has(b'q'),
        }
    }

    /// This key of a get, whose item is not prolonged.
    #[inline]
    pub(crate) fn without_touch(self) -> Self {
        Self { touch: None, ..self }
    }

    /// Writes the header of a value of `len` bytes. Not for an `mg`.
    #[inline]
    pub(crate) fn begin_value(&self, flags: u32, len: usize, cas: u64, out: &mut Vec<u8>) {
        match self.form {
            GetForm::Classic { cas: shown, .. } => {
                reply::value_header(out, self.key, flags, len, shown.then_some(cas));
            }
            GetForm::Packet(packet) => reply::packet::value_header(out, packet, self.key, flags, len, cas),
            GetForm::Meta(_) => unreachable!("an `mg` writes its own hits"),
        }
    }

    /// Writes the end of a value.
    #[inline]
    pub(crate) fn end_value(&self, out: &mut Vec<u8>) {
        if !matches!(self.form, GetForm::Packet(_)) {
            reply::end_line(out);
        }
    }

    /// The reply to a miss, if there is one.
    #[inline]
    pub(crate) fn write_miss(&self, out: &mut Vec<u8>) {
        match self.form {
            GetForm::Classic { .. } => {}
            GetForm::Packet(packet) => reply::packet::miss(out, packet, self.key),
            GetForm::Meta(meta) if meta.set.has(b'q') => {}
            GetForm::Meta(meta) => status_line(out, reply::EN, meta),
        }
    }

    /// Writes an error in place of the key's reply. A quiet get of the binary protocol gets none, since its
    /// clients would take it for the reply to another key.
    pub(crate) fn write_error(&self, line: &str, out: &mut Vec<u8>) {
        match self.form {
            GetForm::Packet(packet) if line.starts_with("CLIENT_ERROR ") => {
                reply::packet::call_error_line(out, packet, self.key, line);
            }
            GetForm::Packet(packet) => reply::packet::get_error_line(out, packet, line),
            _ => reply::line(out, line),
        }
    }

    /// This key as one of a part of a get, in whose place there can be no error: other keys have been
    /// answered.
    pub(crate) fn of_part(self) -> Self {
        match self.form {
            GetForm::Classic { cas, .. } => Self { form: GetForm::Classic { cas, is_part: true }, ..self },
            _ => self,
        }
    }

    /// A copy that outlives the request's bytes.
    pub(crate) fn to_owned(self) -> OwnedAskedKey {
        match self.form {
            GetForm::Classic { cas, .. } => OwnedAskedKey::Classic { key: self.key.into(), cas },
            GetForm::Packet(packet) => OwnedAskedKey::Packet { key: self.key.into(), packet },
            GetForm::Meta(meta) => OwnedAskedKey::Meta(meta.to_owned()),
        }
    }
}

/// An [`AskedKey`] whose reply comes later.
#[derive(Debug)]
pub(crate) enum OwnedAskedKey {
    Classic { key: Box<[u8]>, cas: bool },
    Packet { key: Box<[u8]>, packet: Packet },
    Meta(OwnedMeta),
}

impl OwnedAskedKey {
    /// The key.
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::Classic { key, .. } | Self::Packet { key, .. } => key,
            Self::Meta(meta) => meta.key(),
        }
    }

    /// Bytes of memory that it owns.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Classic { key, .. } | Self::Packet { key, .. } => key.len(),
            Self::Meta(meta) => meta.bytes(),
        }
    }

    /// Writes the key's reply.
    pub(crate) fn write(&self, verdict: Option<Verdict>, out: &mut Output) {
        let asked = match self {
            Self::Classic { key, cas } => {
                AskedKey { key, touch: None, form: GetForm::Classic { cas: *cas, is_part: false } }
            }
            Self::Packet { key, packet } => AskedKey { key, touch: None, form: GetForm::Packet(*packet) },
            Self::Meta(meta) => return write_meta(&meta.as_meta(), verdict, out),
        };
        match verdict {
            Some(Verdict::Value(value)) => {
                asked.begin_value(value.flags, value.value.len(), value.cas, &mut out.bytes);
                out.delivered(&value.value);
                asked.end_value(&mut out.bytes);
            }
            Some(Verdict::Busy { .. }) => asked.write_error(reply::error::BUSY, &mut out.bytes),
            _ => asked.write_miss(&mut out.bytes),
        }
    }
}

fn write_meta(meta: &Meta<'_>, verdict: Option<Verdict>, out: &mut Output) {
    match verdict {
        Some(Verdict::Value(value)) => value_reply(meta, &value, out),
        Some(Verdict::Miss { record: Some(record), hint }) if record.leased && is_explicit(meta) => {
            lease_reply(meta, Some(record.number), hint.as_deref(), out);
        }
        Some(Verdict::Miss { .. } | Verdict::Lost(_)) if is_explicit(meta) => {
            lease_reply(meta, None, None, out);
        }
        Some(Verdict::Busy { .. }) => reply::line(&mut out.bytes, reply::error::BUSY),
        Some(Verdict::Failed { text, .. }) => failed_line(meta, &text, out),
        _ if meta.set.has(b'q') => {}
        _ => status_line(&mut out.bytes, reply::EN, meta),
    }
}

/// The end of the reply to a get, behind its last key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetEnd {
    /// `END`, of a classic get. An error about one key is the whole reply.
    Classic,
    /// `END`, of the last part of a classic get. It is too late for an error.
    Last,
    /// Nothing.
    Nothing,
    /// `MN`, the reply to `mn`.
    Mn,
    /// The reply to this noop.
    Noop(Packet),
}

impl GetEnd {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Classic | Self::Last => out.extend_from_slice(reply::END),
            Self::Nothing => {}
            Self::Mn => out.extend_from_slice(reply::MN),
            Self::Noop(packet) => reply::packet::done(out, packet, 0),
        }
    }
}
