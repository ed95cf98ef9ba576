//! The replies of calls, in the form of the command that made them, at once or after a wait.

use cattlegrid_protocol::{Meta, OwnedMeta, Packet, reply};

use crate::counters::Counters;
use crate::delivered::{DeliveredValue, Verdict};
use crate::reply::meta::{Refusals, ReturnFlags, return_flags, status_line};
use crate::step::Output;

/// The answer of `drop`, which `delete` is.
const DROPPED: &[u8] = b"DELETED";

/// There is no room for an object that may not be evicted, or for any.
pub(crate) const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";

/// The reply to a call that finds too many waiting.
pub(crate) const BUSY: &str = "SERVER_ERROR busy";

/// The reply to a call whose result is longer than an item may be.
pub(crate) const TOO_LARGE: &str = "SERVER_ERROR result too large";

/// The result of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallReply<'a> {
    Value(ShownReply<'a>),
    Miss,
    /// A line without its end.
    Error(&'a str),
}

/// The value of a reply, and what flags show of it and of its object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownReply<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    /// The object's CAS; 0: there is no object.
    pub(crate) cas: u64,
    /// Seconds that the object has to live; None: for ever.
    pub(crate) ttl: Option<u64>,
}

/// The command that made a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallForm<'a> {
    /// A key of a `get` or `gets`. `alone`: the only one, whose error is the reply.
    Get { key: &'a [u8], cas: bool, alone: bool },
    /// A get of the binary protocol.
    Packet { key: &'a [u8], packet: Packet },
    /// `mg`.
    Get2(&'a Meta<'a>),
    /// `ms` with the flag `A`.
    Set(&'a Meta<'a>),
    /// `delete type::key`.
    Delete { noreply: bool },
    /// `md type::key`, which may have come as a packet.
    Delete2(&'a Meta<'a>),
}

/// A [`CallForm`] for a reply that comes later.
#[derive(Debug)]
pub(crate) enum OwnedCallForm {
    /// `last`: no key follows it, so `END` does.
    Get {
        key: Box<[u8]>,
        cas: bool,
        alone: bool,
        last: bool,
    },
    Packet {
        key: Box<[u8]>,
        packet: Packet,
    },
    Get2(OwnedMeta),
    Set(OwnedMeta),
    Delete {
        noreply: bool,
    },
    Delete2(OwnedMeta),
}

/// The values of return flags: the size and flags of the reply, the CAS and the time to live of the object.
struct CallFlags<'a>(ShownReply<'a>);

impl CallForm<'_> {
    /// A `get` of one key, whose error is the reply.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, CallForm::Get { alone: true, .. })
    }

    /// A copy; `last`: see [`OwnedCallForm::Get`].
    pub(crate) fn to_owned(self, last: bool) -> OwnedCallForm {
        match self {
            CallForm::Get { key, cas, alone } => OwnedCallForm::Get { key: key.into(), cas, alone, last },
            CallForm::Packet { key, packet } => OwnedCallForm::Packet { key: key.into(), packet },
            CallForm::Get2(meta) => OwnedCallForm::Get2(meta.to_owned()),
            CallForm::Set(meta) => OwnedCallForm::Set(meta.to_owned()),
            CallForm::Delete { noreply } => OwnedCallForm::Delete { noreply },
            CallForm::Delete2(meta) => OwnedCallForm::Delete2(meta.to_owned()),
        }
    }

    /// Counts a call as the command that it is.
    pub(crate) fn count(self, answered: CallReply<'_>, counters: &Counters) {
        let hit = matches!(answered, CallReply::Value(_));
        match self {
            CallForm::Get { .. } | CallForm::Packet { .. } | CallForm::Get2(_) => {
                if hit { &counters.get_hits } else { &counters.get_misses }.add(1);
            }
            CallForm::Set(_) => {}
            CallForm::Delete { .. } | CallForm::Delete2(_) => {
                let dropped = matches!(answered, CallReply::Value(shows) if shows.value == DROPPED);
                if dropped { &counters.delete_hits } else { &counters.delete_misses }.add(1);
            }
        }
    }

    /// Writes the reply; of a `get`, only the key's `VALUE` block, or the error if it is alone.
    pub(crate) fn write(self, answered: CallReply<'_>, out: &mut Vec<u8>) {
        match (self, answered) {
            (CallForm::Get { key, cas, .. }, CallReply::Value(shows)) => {
                reply::value_header(out, key, shows.flags, shows.value.len(), cas.then_some(shows.cas));
                out.extend_from_slice(shows.value);
                reply::end_line(out);
            }
            (CallForm::Get { alone, .. }, CallReply::Error(text)) => {
                if alone {
                    reply::line(out, text);
                }
            }
            (CallForm::Get { .. }, CallReply::Miss) => {}
            (CallForm::Packet { key, packet }, CallReply::Value(shows)) => {
                reply::packet::value_header(out, packet, key, shows.flags, shows.value.len(), shows.cas);
                out.extend_from_slice(shows.value);
            }
            (CallForm::Packet { key, packet }, CallReply::Miss) => reply::packet::miss(out, packet, key),
            (CallForm::Packet { key, packet }, CallReply::Error(text))
                if text.starts_with("CLIENT_ERROR ") =>
            {
                reply::packet::call_error_line(out, packet, key, text);
            }
            (CallForm::Packet { packet, .. }, CallReply::Error(text)) => {
                reply::packet::get_error_line(out, packet, text);
            }
            (CallForm::Delete { noreply }, answered) => {
                if noreply {
                    return;
                }
                match answered {
                    CallReply::Value(shows) if shows.value == DROPPED => {
                        out.extend_from_slice(reply::DELETED);
                    }
                    CallReply::Error(text) => reply::line(out, text),
                    _ => out.extend_from_slice(reply::NOT_FOUND),
                }
            }
            (
                CallForm::Get2(meta) | CallForm::Set(meta) | CallForm::Delete2(meta),
                CallReply::Error(text),
            ) => {
                Refusals::of(meta.packet).write(text, out);
            }
            (CallForm::Get2(meta), CallReply::Value(shows)) => write_meta(meta, shows, out),
            (CallForm::Set(meta), CallReply::Value(shows)) => {
                // Quiet: a success is left out, unless its value is wanted.
                if !meta.set.has(b'q') || meta.set.has(b'v') {
                    write_meta(meta, shows, out);
                }
            }
            (CallForm::Get2(meta), CallReply::Miss) => quiet_line(meta, reply::EN, out),
            (CallForm::Set(meta), CallReply::Miss) => status_line(out, reply::NF, meta),
            (CallForm::Delete2(meta), CallReply::Value(shows)) if shows.value == DROPPED => {
                quiet_line(meta, reply::HD, out);
            }
            // In the binary protocol a quiet delete is told of a miss.
            (CallForm::Delete2(meta), _) if meta.packet.is_some() => status_line(out, reply::NF, meta),
            (CallForm::Delete2(meta), _) => quiet_line(meta, reply::NF, out),
        }
    }
}

impl ReturnFlags for CallFlags<'_> {
    fn size(&self) -> Option<usize> {
        Some(self.0.value.len())
    }

    fn ttl(&self) -> Option<Option<u64>> {
        Some(self.0.ttl)
    }

    fn cas(&self) -> Option<u64> {
        Some(self.0.cas)
    }

    fn client_flags(&self) -> Option<u32> {
        Some(self.0.flags)
    }

    fn last_access(&self) -> Option<u64> {
        Some(0)
    }

    fn hit_before(&self) -> Option<bool> {
        Some(false)
    }
}

impl OwnedCallForm {
    /// Bytes of memory that it owns.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Get { key, .. } | Self::Packet { key, .. } => key.len(),
            Self::Get2(meta) | Self::Set(meta) | Self::Delete2(meta) => meta.bytes(),
            Self::Delete { .. } => 0,
        }
    }

    /// Calls `act` with the shape, and whether `END` follows.
    fn with<R>(&self, act: impl FnOnce(CallForm<'_>, bool) -> R) -> R {
        match self {
            Self::Get { key, cas, alone, last } => {
                act(CallForm::Get { key, cas: *cas, alone: *alone }, *last)
            }
            Self::Packet { key, packet } => act(CallForm::Packet { key, packet: *packet }, false),
            Self::Get2(meta) => act(CallForm::Get2(&meta.as_meta()), false),
            Self::Set(meta) => act(CallForm::Set(&meta.as_meta()), false),
            Self::Delete { noreply } => act(CallForm::Delete { noreply: *noreply }, false),
            Self::Delete2(meta) => act(CallForm::Delete2(&meta.as_meta()), false),
        }
    }

    /// Counts the end of a wait.
    pub(crate) fn count(&self, verdict: &Verdict, counters: &Counters) {
        self.with(|shape, _| shape.count(answered(verdict), counters));
    }

    /// Writes the reply, with the `END` that belongs to it.
    pub(crate) fn write(&self, verdict: &Verdict, out: &mut Output) {
        self.with(|shape, last| {
            let answered = answered(verdict);
            shape.write(answered, &mut out.bytes);
            let is_error =
                matches!((shape, answered), (CallForm::Get { alone: true, .. }, CallReply::Error(_)));
            if last && !is_error {
                out.bytes.extend_from_slice(reply::END);
            }
        });
    }
}

fn quiet_line(meta: &Meta<'_>, status: &[u8], out: &mut Vec<u8>) {
    if !meta.set.has(b'q') {
        status_line(out, status, meta);
    }
}

/// `VA` with the value if `v` asks for it, `HD` otherwise.
fn write_meta(meta: &Meta<'_>, shows: ShownReply<'_>, out: &mut Vec<u8>) {
    let with_value = meta.set.has(b'v');
    if with_value {
        reply::va(out, shows.value.len());
    } else {
        out.extend_from_slice(reply::HD);
    }
    return_flags(meta, &mut CallFlags(shows), out);
    reply::end_line(out);
    if with_value {
        out.extend_from_slice(shows.value);
        reply::end_line(out);
    }
}

/// The result of a call as it came by a wake.
fn answered(verdict: &Verdict) -> CallReply<'_> {
    let Verdict::Value(delivered) = verdict else { return CallReply::Miss };
    match &delivered.value {
        DeliveredValue::Line(text) => CallReply::Error(text),
        DeliveredValue::Inline(value) => CallReply::Value(ShownReply {
            value,
            flags: delivered.flags,
            cas: delivered.cas,
            ttl: delivered.ttl,
        }),
        DeliveredValue::Huge(_) => unreachable!("results of calls are copied"),
    }
}
