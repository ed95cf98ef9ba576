//! Replies to meta commands: the return flags, in the order of the line, of an item, a delivered value, a
//! lease or a number.

use cattlegrid_protocol::{Meta, Packet, PacketStatus, Request, reply};

use crate::delivered::Delivery;
use crate::step::Context;
use crate::step::Output;

/// The values of the return flags. A flag without a value is left out.
pub(crate) trait ReturnFlags {
    /// A flag that acts, at its place in the line: later flags show its effect.
    #[inline]
    fn act(&mut self, _letter: u8) {}

    /// `s`: bytes of the value.
    #[inline]
    fn size(&self) -> Option<usize> {
        None
    }

    /// `t`: seconds to live; the inner None is forever.
    #[inline]
    #[expect(clippy::option_option, reason = "what is shown may be that there is no end")]
    fn ttl(&self) -> Option<Option<u64>> {
        None
    }

    /// `c`: the CAS.
    #[inline]
    fn cas(&self) -> Option<u64> {
        None
    }

    /// `f`: the client flags.
    #[inline]
    fn client_flags(&self) -> Option<u32> {
        None
    }

    /// `l`: seconds since the last read.
    #[inline]
    fn last_access(&self) -> Option<u64> {
        None
    }

    /// `h`: whether it was read before.
    #[inline]
    fn hit_before(&self) -> Option<bool> {
        None
    }
}

/// Only the flags about the command: key and opaque.
pub(crate) struct CommandFlags;

impl ReturnFlags for CommandFlags {}

/// A lease without a value, as the reply of its miss shows it.
struct LeaseFlags {
    /// None: another client has the lease.
    token: Option<u64>,
}

impl ReturnFlags for LeaseFlags {
    fn size(&self) -> Option<usize> {
        Some(0)
    }

    fn ttl(&self) -> Option<Option<u64>> {
        Some(None)
    }

    fn cas(&self) -> Option<u64> {
        Some(self.token.unwrap_or(0))
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

impl ReturnFlags for &Delivery {
    fn size(&self) -> Option<usize> {
        Some(self.value.len())
    }

    fn ttl(&self) -> Option<Option<u64>> {
        Some(self.ttl)
    }

    fn cas(&self) -> Option<u64> {
        Some(self.cas)
    }

    fn client_flags(&self) -> Option<u32> {
        Some(self.flags)
    }

    fn last_access(&self) -> Option<u64> {
        Some(0)
    }

    fn hit_before(&self) -> Option<bool> {
        Some(false)
    }
}

/// Writes the return flags.
#[inline]
pub(crate) fn return_flags(meta: &Meta<'_>, shown: &mut impl ReturnFlags, out: &mut Vec<u8>) {
    for token in meta.flags {
        match token[0] {
            b's' => drop(shown.size().map(|size| reply::size(out, size))),
            b't' => drop(shown.ttl().map(|ttl| reply::ttl(out, ttl))),
            b'c' => drop(shown.cas().map(|cas| reply::cas(out, cas))),
            b'f' => drop(shown.client_flags().map(|flags| reply::client_flags(out, flags))),
            b'l' => drop(shown.last_access().map(|seconds| reply::last_access(out, seconds))),
            b'h' => drop(shown.hit_before().map(|before| reply::hit_before(out, before))),
            b'O' => reply::token(out, token),
            b'k' => reply::key(out, &meta.key),
            letter => shown.act(letter),
        }
    }
}

/// `VA` and the size if the value follows, otherwise `HD`.
#[inline]
pub(crate) fn hit(size: usize, with_value: bool, out: &mut Vec<u8>) {
    if with_value {
        reply::va(out, size);
    } else {
        out.extend_from_slice(reply::HD);
    }
}

/// How a command is told that it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusals {
    /// `noreply`.
    None,
    Line,
    Packet(Packet),
}

impl Refusals {
    /// The refusals of a classic command.
    pub(crate) fn classic(noreply: bool) -> Self {
        if noreply { Self::None } else { Self::Line }
    }

    /// The refusals of a command that may have come as a packet.
    pub(crate) fn of(packet: Option<Packet>) -> Self {
        packet.map_or(Self::Line, Self::Packet)
    }

    /// Writes the error.
    #[cold]
    pub(crate) fn write(self, line: &str, out: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Line => reply::line(out, line),
            Self::Packet(packet) => reply::packet::error_line(out, packet, line),
        }
    }

    /// Writes the error of a command that cannot be used with a control key or a name of an object: a store
    /// stores nothing, any other finds nothing.
    #[cold]
    pub(crate) fn write_no_name(self, stores: bool, line: &str, out: &mut Vec<u8>) {
        match self {
            Self::Packet(packet) if stores => reply::packet::not_stored_line(out, packet, line),
            Self::Packet(packet) => reply::packet::call_error_line(out, packet, &[], line),
            Self::None | Self::Line => self.write(line, out),
        }
    }

    /// Writes the error for which a value or an announcement of tags is not stored.
    #[cold]
    pub(crate) fn write_not_stored(self, line: &str, out: &mut Vec<u8>) {
        match self {
            Self::Packet(packet) => reply::packet::not_stored_line(out, packet, line),
            Self::None | Self::Line => self.write(line, out),
        }
    }
}

/// How a request is told that it was refused.
pub(crate) fn refusals_of(request: &Request<'_>) -> Refusals {
    match request {
        Request::Store(store) => Refusals::classic(store.noreply),
        Request::Arith(arith) => Refusals::classic(arith.noreply),
        Request::Delete(delete) => Refusals::classic(delete.noreply),
        Request::Touch(touch) if touch.noreply => Refusals::None,
        Request::Touch(touch) => Refusals::of(touch.packet),
        Request::MetaSet(meta, _)
        | Request::MetaArith(meta)
        | Request::MetaDelete(meta)
        | Request::MetaGet(meta) => Refusals::of(meta.packet),
        Request::PacketGet(get) => Refusals::Packet(get.packet),
        _ => Refusals::Line,
    }
}

/// Counts a meta command; what comes as a packet is none.
#[inline]
pub(crate) fn count_meta(meta: &Meta<'_>, cx: &Context<'_>) {
    if meta.packet.is_none() {
        cx.step.counters.cmd_meta.add(1);
    }
}

/// A status with the flags that are always returned: key and opaque.
pub(crate) fn status_line(out: &mut Vec<u8>, status: &[u8], meta: &Meta<'_>) {
    if let Some(packet) = meta.packet {
        return match status {
            reply::HD => reply::packet::done(out, packet, 0),
            reply::EX => reply::packet::error(out, packet, PacketStatus::Exists),
            reply::NS => reply::packet::error(out, packet, PacketStatus::NotStored),
            _ => reply::packet::error(out, packet, PacketStatus::NotFound),
        };
    }
    out.extend_from_slice(status);
    return_flags(meta, &mut CommandFlags, out);
    reply::end_line(out);
}

/// `EN` with the text of a computation that failed.
pub(crate) fn failed_line(meta: &Meta<'_>, text: &[u8], out: &mut Output) {
    out.bytes.extend_from_slice(reply::EN);
    out.bytes.extend_from_slice(b" Pe");
    out.bytes.extend_from_slice(text);
    return_flags(meta, &mut CommandFlags, &mut out.bytes);
    reply::end_line(&mut out.bytes);
}

/// Whether an `mg` asks for the lease: it has `N` or `R`.
pub(crate) fn is_explicit(meta: &Meta<'_>) -> bool {
    meta.set.has(b'N') || meta.set.has(b'R')
}

/// `VA 0 ... W` for the holder, with the token as its `c`; `VA 0 ... Z` for other clients.
pub(crate) fn lease_reply(meta: &Meta<'_>, token: Option<u64>, hint: Option<&[u8]>, out: &mut Output) {
    let out = &mut out.bytes;
    let with_value = meta.set.has(b'v');
    hit(0, with_value, out);
    return_flags(meta, &mut LeaseFlags { token }, out);
    match token {
        Some(_) => reply::won(out),
        None => reply::lost(out),
    }
    if let Some(hint) = hint {
        out.extend_from_slice(b" Ph");
        out.extend_from_slice(hint);
    }
    reply::end_line(out);
    if with_value {
        reply::end_line(out);
    }
}

/// A value that was waited for.
pub(crate) fn value_reply(meta: &Meta<'_>, value: &Delivery, out: &mut Output) {
    let with_value = meta.set.has(b'v') && !(meta.set.has(b'C') && meta.set.compare_cas == value.cas);
    hit(value.value.len(), with_value, &mut out.bytes);
    return_flags(meta, &mut &*value, &mut out.bytes);
    if value.is_old {
        reply::lost(&mut out.bytes);
        reply::stale(&mut out.bytes);
    }
    reply::end_line(&mut out.bytes);
    if with_value {
        out.delivered(&value.value);
        reply::end_line(&mut out.bytes);
    }
}
