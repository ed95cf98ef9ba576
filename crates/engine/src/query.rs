//! What a get asks of a key's rule, on which terms, and what is decided.
//!
//! `get` and `mg` ask with the same [`Query`], and each writes the [`Decision`] in its own form; what a `get`
//! goes on with is the [`KeyAnswer`]. The `P` flag of meta commands has the terms on which a client asks for
//! a lease ([`Advice`]).

use std::sync::Arc;

use cattlegrid_herd::{AskMode, LeaseKind};
use cattlegrid_objects::Spot;
use cattlegrid_protocol::Meta;
use cattlegrid_store::Found;

/// Longest hold and lease that can be asked for, in milliseconds.
const ASKED_MAX_MS: u32 = 60_000;

/// Longest `P` flag, in bytes; a longer one is ignored.
const ADVICE_MAX: usize = 512;

/// How a key is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
    /// Plainly, or for the lease.
    pub(crate) how: AskMode,
    /// Only whether there is a value is asked, and not for it: its client will not compute one.
    pub(crate) probes: bool,
    /// The expiry of a fresh value is prolonged: it needs no refresh.
    pub(crate) prolongs: bool,
    /// A value that expires before this second is due for a refresh.
    pub(crate) recache: Option<u32>,
    /// For the client that gets the lease.
    pub(crate) hint: Option<&'a [u8]>,
    /// Longest wait, in milliseconds; None: as the rule says.
    pub(crate) hold_ms: Option<u32>,
}

/// How a get of a key is answered. A miss has been recorded; only the rule's counters have been counted.
#[derive(Debug)]
#[must_use]
pub(crate) enum Decision {
    /// A fresh value.
    Fresh(Found),
    /// A value that is stale or due for a refresh, while another client computes the new one.
    Old(Found, LeaseKind),
    /// An old value, for a client that only probes: whether another client computes was not asked.
    Probed(Found, LeaseKind),
    /// A miss: the key is known to be absent.
    Negative,
    /// A miss.
    Miss,
    /// A miss with the lease; with the value that is stale or due for a refresh, if there is one.
    Compute {
        /// The lease's token.
        token: u64,
        /// The hint for the computation.
        hint: Option<Arc<[u8]>>,
        /// The value.
        old: Option<(Found, LeaseKind)>,
    },
    /// Another client has the lease: the key may be waited for.
    Leased(HoldLimits),
    /// `SERVER_ERROR busy`, as the rule's `on_busy` says.
    Busy,
}

impl Decision {
    /// A stored value is the answer.
    pub(crate) fn is_hit(&self) -> bool {
        matches!(self, Self::Fresh(..) | Self::Old(..) | Self::Probed(..))
    }

    /// The client may compute the value.
    pub(crate) fn is_miss(&self) -> bool {
        matches!(self, Self::Compute { .. } | Self::Miss | Self::Busy)
    }
}

/// The answer to one key of a `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum KeyAnswer {
    /// The key's value is written.
    Hit,
    /// No value.
    Miss,
    /// No value, and this connection has the lease.
    Compute,
    /// Another client has the lease; the key has not been waited for yet.
    Leased(HoldLimits),
    /// `SERVER_ERROR busy`, which is not written yet.
    Busy,
    /// The key is a control key.
    Control,
    /// The key names a call or an object; where, if that was noted.
    Object(Option<Spot>),
}

/// How long a key may be waited for, in milliseconds.
#[expect(clippy::struct_excessive_bools, reason = "each is about something else")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldLimits {
    /// The limit of the only key of a get.
    pub(crate) one_ms: u32,
    /// The limit of one of several keys.
    pub(crate) many_ms: u32,
    /// The remaining time as soon as a finished reply waits behind the get.
    pub(crate) behind_ms: u32,
    /// A get that computes other keys waits for this one nevertheless.
    pub(crate) partial_waits: bool,
    /// There is an old value, which is the answer when the wait is over.
    pub(crate) has_old: bool,
    /// The client that asks is the holder: the wait begins as a trial.
    pub(crate) on_trial: bool,
    /// A loader computes it: also a part of a long get waits.
    pub(crate) by_loader: bool,
}

/// The parts of the `P` flag: `w<ms>`, `h<text>`, `d`, `e<text>`, `l<ms>`, separated by commas. Unknown parts
/// are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Advice<'a> {
    /// `w`: hold the request for up to this many milliseconds; at most [`ASKED_MAX_MS`], and without a lease
    /// at most the rule's `hold`.
    pub(crate) wait_ms: Option<u32>,
    /// `l`: the lease time in milliseconds; 1..=[`ASKED_MAX_MS`].
    lease_ms: Option<u32>,
    /// `h`: a hint for the client that gets the lease.
    pub(crate) hint: Option<&'a [u8]>,
    /// `d`: the lease outlives the connection.
    detached: bool,
    /// `e`: the computation failed.
    pub(crate) error: Option<&'a [u8]>,
}

impl<'a> Query<'a> {
    /// The query of a `get`, or of a `gat` (`prolongs`).
    pub(crate) fn plain(key: &'a [u8], hash: u64, prolongs: bool) -> Self {
        Self {
            key,
            hash,
            how: AskMode::Plain,
            probes: false,
            prolongs,
            recache: None,
            hint: None,
            hold_ms: None,
        }
    }

    pub(crate) fn is_explicit(&self) -> bool {
        self.how.is_explicit()
    }

    /// How long it may wait for a new value in place of an old one, or in a get of several keys, where the
    /// rule gives this number of milliseconds.
    pub(crate) fn wait_ms(&self, ruled_ms: u32) -> u32 {
        if self.is_explicit() { ruled_ms } else { self.hold_ms(ruled_ms) }
    }

    /// How long it may be held where the rule gives this number of milliseconds: a client that does not ask
    /// for the lease can only shorten it.
    pub(crate) fn hold_ms(&self, ruled_ms: u32) -> u32 {
        match self.hold_ms {
            Some(ms) if self.is_explicit() => ms,
            Some(ms) => ms.min(ruled_ms),
            None => ruled_ms,
        }
    }
}

impl<'a> Advice<'a> {
    pub(crate) fn of(meta: &Meta<'a>) -> Self {
        let mut advice = Self::default();
        let Some(token) = meta.flags.into_iter().find(|token| token[0] == b'P' && token.len() <= ADVICE_MAX)
        else {
            return advice;
        };
        for part in token[1..].split(|byte| *byte == b',') {
            match part.split_first() {
                Some((b'w', ms)) => advice.wait_ms = number(ms),
                Some((b'l', ms)) => advice.lease_ms = number(ms).filter(|ms| *ms > 0),
                Some((b'h', text)) => advice.hint = Some(text),
                Some((b'd', [])) => advice.detached = true,
                Some((b'e', text)) => advice.error = Some(text),
                _ => {}
            }
        }
        advice
    }
}

impl Advice<'_> {
    /// How `N` or `R` asks for the lease. The seconds of `N` are the lease time unless `l` gives one.
    pub(crate) fn how(&self, meta: &Meta<'_>) -> AskMode {
        let seconds = if meta.set.has(b'N') { u32::try_from(meta.set.vivify).unwrap_or(0) } else { 0 };
        let asked = (seconds > 0).then(|| seconds.saturating_mul(1000).min(ASKED_MAX_MS));
        AskMode::Explicit { detached: self.detached, lease_ms: self.lease_ms.or(asked) }
    }
}

fn number(text: &[u8]) -> Option<u32> {
    let number: u32 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(number.min(ASKED_MAX_MS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cattlegrid_protocol::{Limits, Parsed, Request, parse};

    #[test]
    fn unknown_advice_is_ignored() {
        let advice = |flags: &str| {
            let line = format!("mg k v {flags}\r\n");
            let Parsed::Complete { request: Request::MetaGet(meta), .. } =
                parse(line.as_bytes(), &Limits::default())
            else {
                panic!("{line:?}")
            };
            let Advice { wait_ms, lease_ms, hint, detached, error } = Advice::of(&meta);
            let text = |text: Option<&[u8]>| text.map(|text| String::from_utf8_lossy(text).into_owned());
            (wait_ms, lease_ms, text(hint), detached, text(error))
        };
        assert_eq!(advice("Pw400,hfast"), (Some(400), None, Some("fast".into()), false, None));
        assert_eq!(advice("Pd,l100,w"), (None, Some(100), None, true, None));
        assert_eq!(advice("Pesome%20text"), (None, None, None, false, Some("some%20text".into())));
        assert_eq!(advice("Pw99999999,x1"), (Some(60_000), None, None, false, None));
        assert_eq!(advice("N30"), (None, None, None, false, None));
    }
}
