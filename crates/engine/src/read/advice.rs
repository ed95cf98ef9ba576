//! The `P` flag of meta commands: what a client asks for with a lease.

use cattlegrid_herd::How;
use cattlegrid_protocol::Meta;

/// What the `P` flag says: `w<ms>`, `h<text>`, `d`, `e<text>`, `l<ms>`, with commas between them. What is not understood
/// is advice not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Advice<'a> {
    /// `w`: hold me up to so many milliseconds.
    pub(crate) wait_ms: Option<u32>,
    /// `l`: my lease is to last so many milliseconds.
    lease_ms: Option<u32>,
    /// `h`: for whoever computes.
    pub(crate) hint: Option<&'a [u8]>,
    /// `d`: my lease outlives my connection.
    detached: bool,
    /// `e`: the computation failed.
    pub(crate) error: Option<&'a [u8]>,
}

/// Longest hold and lease that can be asked for, in milliseconds.
const ASKED_MAX_MS: u32 = 60_000;

/// Longest `P` flag in bytes.
const ADVICE_MAX: usize = 512;

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
    /// How a lease is asked for that `N` or `R` is about. `N` says for how long, as far as `l` does not.
    pub(crate) fn how(&self, meta: &Meta<'_>) -> How {
        let seconds = if meta.set.has(b'N') { u32::try_from(meta.set.vivify).unwrap_or(0) } else { 0 };
        let asked = (seconds > 0).then(|| seconds.saturating_mul(1000).min(ASKED_MAX_MS));
        How::Explicit { detached: self.detached, lease_ms: self.lease_ms.or(asked) }
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
    fn advice_is_read_as_far_as_it_is_understood() {
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
