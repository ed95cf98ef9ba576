//! Base64 keys: decoded into a buffer of fixed size, encoded again for the reply.
//!
//! The decoder accepts what memcached's accepts: characters outside the alphabet are skipped, the rest must
//! be whole groups of four, and padding ends the key. `k` returns the key encoded again, so that a key has
//! one spelling in replies.
//!
//! # Invariant
//! A decoded key has 1 to 187 bytes, and the unused bytes of its buffer are zero, so that equal keys compare
//! equal.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;

use crate::command::{DecodedKey, KEY_MAX, MetaKey};

impl<'a> MetaKey<'a> {
    /// A key that was sent as it is.
    pub fn plain(sent: &'a [u8]) -> Self {
        Self { sent, decoded: None }
    }

    /// A key that was sent as base64; `None` when it cannot be decoded (memcached's `error decoding
    /// key`), decodes to nothing, or is longer than [`crate::KEY_MAX`].
    pub fn base64(sent: &'a [u8]) -> Option<Self> {
        Some(Self { sent, decoded: Some(decode(sent)?) })
    }
}

/// Appends `bytes` as padded base64.
pub(crate) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    debug_assert_eq!(written, Ok(out.len() - start));
}

fn decode(sent: &[u8]) -> Option<DecodedKey> {
    let (mut letters, mut count) = ([0; KEY_MAX], 0);
    for b in sent.iter().filter(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=')) {
        *letters.get_mut(count)? = *b;
        count += 1;
    }
    if sent.len() > KEY_MAX || count == 0 || count % 4 != 0 {
        return None;
    }
    // As in memcached, padding ends the key with its group of four wherever it stands in it, and counts as
    // zeros.
    let end = letters[..count].iter().position(|b| *b == b'=').map_or(count, |at| at / 4 * 4 + 4);
    let padding = letters[..end].iter_mut().filter(|b| **b == b'=').map(|b| *b = b'A').count();
    if padding > 2 {
        return None;
    }
    let mut key = DecodedKey { len: 0, bytes: [0; 188] };
    let decoded = STANDARD.decode_slice(&letters[..end], &mut key.bytes).ok()?;
    let len = decoded - padding;
    key.bytes[len..].fill(0);
    debug_assert!(len > 0 && len <= 187);
    key.len = len as u8;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(sent: &str) -> Option<Vec<u8>> {
        MetaKey::base64(sent.as_bytes()).map(|k| k.bytes().to_vec())
    }

    #[test]
    fn decodes() {
        assert_eq!(decoded("Zm9v").unwrap(), b"foo");
        assert_eq!(decoded("Zm9vIGJhcg==").unwrap(), b"foo bar");
        assert_eq!(decoded("Zm8=").unwrap(), b"fo");
        assert_eq!(decoded("Z!m-9v").unwrap(), b"foo");
        assert_eq!(decoded("Zm8=Zm9v").unwrap(), b"fo");
        assert_eq!(decoded("AQ=BZm9v").unwrap(), [1, 0], "padding within a group, as in memcached");
    }

    #[test]
    fn refuses() {
        for bad in ["", "!!!", "Zm9", "=", "====", "Z===", &"A".repeat(252)] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }

    #[test]
    fn longest() {
        assert_eq!(decoded(&"/".repeat(248)).unwrap(), [0xff; 186]);
    }

    #[test]
    fn round_trip_of_every_length() {
        let bytes: Vec<u8> = (0..186u8).map(|i| i.wrapping_mul(7).wrapping_add(200)).collect();
        for len in 1..=bytes.len() {
            let mut sent = Vec::new();
            encode(&mut sent, &bytes[..len]);
            assert_eq!(MetaKey::base64(&sent).unwrap().bytes(), &bytes[..len]);
        }
    }
}
