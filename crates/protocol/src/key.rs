//! Base64 keys: decoded into a buffer of fixed size, encoded again for the reply.
//!
//! The decoder accepts what memcached's accepts: characters outside the alphabet are skipped, the rest must
//! be whole groups of four, and padding ends the key. `k` returns the key encoded again, so that a key has
//! one spelling in replies.
//!
//! # Invariant
//! A decoded key has 1 to 187 bytes, and the unused bytes of its buffer are zero, so that equal keys compare
//! equal.

use crate::command::{DecodedKey, MetaKey};

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
    for group in bytes.chunks(3) {
        let b = [group[0], group.get(1).copied().unwrap_or(0), group.get(2).copied().unwrap_or(0)];
        let n = u32::from(b[0]) << 16 | u32::from(b[1]) << 8 | u32::from(b[2]);
        let letter = |shift: u32| ALPHABET[(n >> shift & 63) as usize];
        let mut quad = [letter(18), letter(12), b'=', b'='];
        if group.len() > 1 {
            quad[2] = letter(6);
        }
        if group.len() > 2 {
            quad[3] = letter(0);
        }
        out.extend_from_slice(&quad);
    }
}

fn decode(sent: &[u8]) -> Option<DecodedKey> {
    if sent.len() > crate::KEY_MAX {
        return None;
    }
    let valid = sent.iter().filter(|&&b| VALUES[usize::from(b)] != SKIP).count();
    if valid == 0 || valid % 4 != 0 {
        return None;
    }
    let mut key = DecodedKey { len: 0, bytes: [0; 188] };
    let (mut len, mut group, mut have, mut padding) = (0, 0u32, 0, 0);
    for &b in sent {
        let value = VALUES[usize::from(b)];
        if value == SKIP {
            continue;
        }
        padding += usize::from(b == b'=');
        group = group << 6 | u32::from(value);
        have += 1;
        if have == 4 {
            if padding > 2 {
                return None;
            }
            let [_, triple @ ..] = group.to_be_bytes();
            key.bytes[len..len + 3].copy_from_slice(&triple);
            len += 3 - padding;
            if padding > 0 {
                break;
            }
            (group, have) = (0, 0);
        }
    }
    key.bytes[len..].fill(0);
    debug_assert!(len > 0 && len <= 187);
    key.len = len as u8;
    Some(key)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Marks a character outside the alphabet.
const SKIP: u8 = 0x80;

/// The value of each character; `=` counts as 0.
const VALUES: [u8; 256] = {
    let mut table = [SKIP; 256];
    let mut i = 0;
    while i < 64 {
        table[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    table[b'=' as usize] = 0;
    table
};

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
