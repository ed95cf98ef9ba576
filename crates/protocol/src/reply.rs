//! Writing replies: everything appends to the connection's output buffer.
//!
//! Constants in capitals are whole lines with their CRLF, except the status words of meta replies
//! (`HD VA EN NF NS EX`): flags may follow those, and [`end_line`] ends them.

pub mod error;
pub mod packet;

use crate::command::MetaKey;

/// `STORED`.
pub const STORED: &[u8] = b"STORED\r\n";
/// `NOT_STORED`.
pub const NOT_STORED: &[u8] = b"NOT_STORED\r\n";
/// `EXISTS`.
pub const EXISTS: &[u8] = b"EXISTS\r\n";
/// `NOT_FOUND`.
pub const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
/// `DELETED`.
pub const DELETED: &[u8] = b"DELETED\r\n";
/// `TOUCHED`.
pub const TOUCHED: &[u8] = b"TOUCHED\r\n";
/// `END`, after the last value or statistic.
pub const END: &[u8] = b"END\r\n";
/// `OK`.
pub const OK: &[u8] = b"OK\r\n";
/// `RESET`, to `stats reset`.
pub const RESET: &[u8] = b"RESET\r\n";
/// `MN`, to `mn`: the whole line.
pub const MN: &[u8] = b"MN\r\n";
/// The end of any line.
pub const CRLF: &[u8] = b"\r\n";

/// Meta status: done. Ended by [`end_line`].
pub const HD: &[u8] = b"HD";
/// Meta status: not in the cache (`mg`). Ended by [`end_line`].
pub const EN: &[u8] = b"EN";
/// Meta status: no such item (`ms md ma`). Ended by [`end_line`].
pub const NF: &[u8] = b"NF";
/// Meta status: not stored. Ended by [`end_line`].
pub const NS: &[u8] = b"NS";
/// Meta status: exists with another CAS. Ended by [`end_line`].
pub const EX: &[u8] = b"EX";

/// A line of text.
pub fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    end_line(out);
}

/// Ends a line: a meta status with its flags, or a value.
#[inline]
pub fn end_line(out: &mut Vec<u8>) {
    out.extend_from_slice(CRLF);
}

/// A decimal number.
#[inline]
pub fn number(out: &mut Vec<u8>, mut n: u64) {
    if n < 10 {
        out.push(b'0' + n as u8);
        return;
    }
    let mut digits = [0; 20];
    let mut at = digits.len();
    while n >= 10 {
        let pair = (n % 100) as usize * 2;
        n /= 100;
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if n > 0 {
        at -= 1;
        digits[at] = b'0' + n as u8;
    }
    out.extend_from_slice(&digits[at..]);
}

/// `VALUE <key> <flags> <len> [<cas>]` and CRLF; the value and [`end_line`] come next.
#[inline]
pub fn value_header(out: &mut Vec<u8>, key: &[u8], flags: u32, len: usize, cas: Option<u64>) {
    out.reserve(key.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    number(out, flags.into());
    out.push(b' ');
    number(out, len as u64);
    if let Some(cas) = cas {
        out.push(b' ');
        number(out, cas);
    }
    end_line(out);
}

/// `VA <len>`: flags, [`end_line`], the value and [`end_line`] come next.
#[inline]
pub fn va(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(b"VA ");
    number(out, len as u64);
}

/// The return flag of `k`: ` k<key>`, for a base64 key ` k<base64> b`. The flag `b` itself
/// returns nothing.
pub fn key(out: &mut Vec<u8>, key: &MetaKey<'_>) {
    out.extend_from_slice(b" k");
    key_text(out, key);
    if key.is_binary() {
        out.extend_from_slice(b" b");
    }
}

/// A key as it was sent; a base64 key in its padded spelling.
pub fn key_text(out: &mut Vec<u8>, key: &MetaKey<'_>) {
    if key.is_binary() {
        crate::key::encode(out, key.bytes());
    } else {
        out.extend_from_slice(key.sent);
    }
}

/// A key's bytes as padded base64, for keys that cannot stand in a line.
pub fn key_base64(out: &mut Vec<u8>, key: &[u8]) {
    crate::key::encode(out, key);
}

/// A flag token as it was sent, such as `O<opaque>`, letter included.
#[inline]
pub fn token(out: &mut Vec<u8>, token: &[u8]) {
    out.push(b' ');
    out.extend_from_slice(token);
}

/// A letter alone: ` W`, ` X`, ` Z`.
#[inline]
pub fn flag(out: &mut Vec<u8>, letter: u8) {
    out.extend_from_slice(&[b' ', letter]);
}

/// A letter and a number: ` f c s l`.
#[inline]
pub fn flag_number(out: &mut Vec<u8>, letter: u8, n: u64) {
    flag(out, letter);
    number(out, n);
}

/// ` f<client flags>`.
#[inline]
pub fn client_flags(out: &mut Vec<u8>, flags: u32) {
    flag_number(out, b'f', flags.into());
}

/// ` c<cas>`.
#[inline]
pub fn cas(out: &mut Vec<u8>, cas: u64) {
    flag_number(out, b'c', cas);
}

/// ` t<seconds left>`; `None`: never expires, ` t-1`.
#[inline]
pub fn ttl(out: &mut Vec<u8>, seconds: Option<u64>) {
    match seconds {
        Some(seconds) => flag_number(out, b't', seconds),
        None => out.extend_from_slice(b" t-1"),
    }
}

/// ` s<value bytes>`.
#[inline]
pub fn size(out: &mut Vec<u8>, bytes: usize) {
    flag_number(out, b's', bytes as u64);
}

/// ` h1` if the item was fetched before, otherwise ` h0`.
#[inline]
pub fn hit_before(out: &mut Vec<u8>, hit: bool) {
    out.extend_from_slice(if hit { b" h1" } else { b" h0" });
}

/// ` l<seconds since the last access>`.
#[inline]
pub fn last_access(out: &mut Vec<u8>, seconds: u64) {
    flag_number(out, b'l', seconds);
}

/// ` W`: this client has the lease.
#[inline]
pub fn won(out: &mut Vec<u8>) {
    flag(out, b'W');
}

/// ` X`: the value is stale.
#[inline]
pub fn stale(out: &mut Vec<u8>) {
    flag(out, b'X');
}

/// ` Z`: another client has the lease.
#[inline]
pub fn lost(out: &mut Vec<u8>) {
    flag(out, b'Z');
}

/// `00` to `99`.
const PAIRS: [u8; 200] = {
    let mut table = [0; 200];
    let mut i = 0;
    while i < 100 {
        table[2 * i] = b'0' + (i / 10) as u8;
        table[2 * i + 1] = b'0' + (i % 10) as u8;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers() {
        let mut n = 1u64;
        for _ in 0..64 {
            for m in [n - 1, n, n + 1, u64::MAX - n] {
                assert_eq!(written(|out| number(out, m)), m.to_string());
            }
            n = n.wrapping_mul(2).max(1);
        }
        for m in [0, 9, 10, 99, 100, 101, 999, 1000, u64::MAX] {
            assert_eq!(written(|out| number(out, m)), m.to_string());
        }
    }

    #[test]
    fn values() {
        assert_eq!(written(|out| value_header(out, b"a", 5, 3, None)), "VALUE a 5 3\r\n");
        assert_eq!(
            written(|out| value_header(out, b"a", u32::MAX, 0, Some(9))),
            "VALUE a 4294967295 0 9\r\n"
        );
        assert_eq!(written(|out| va(out, 12)), "VA 12");
    }

    #[test]
    fn return_flags() {
        let all = written(|out| {
            key(out, &MetaKey::plain(b"foo"));
            key(out, &MetaKey::base64(b"Zm9v!").unwrap());
            token(out, b"Oq1");
            client_flags(out, 9);
            cas(out, 77);
            ttl(out, Some(30));
            ttl(out, None);
            size(out, 2);
            hit_before(out, true);
            hit_before(out, false);
            last_access(out, 0);
            won(out);
            stale(out);
            lost(out);
            end_line(out);
        });
        assert_eq!(all, " kfoo kZm9v b Oq1 f9 c77 t30 t-1 s2 h1 h0 l0 W X Z\r\n");
    }
}
