//! Writing requests, as a client does: everything appends to a buffer.
//!
//! The other direction of [`parse`](crate::parse), which the tests hold it to. Keys, flags and verbs are
//! written as they are: that a key has 1 to 250 bytes without blanks is up to the caller.

use crate::reply::{end_line, number};

/// A classic `get`, `gets` of these keys, of which there is at least one; for `gat` and `gats` the exptime
/// comes first.
pub fn get<'k>(out: &mut Vec<u8>, verb: &str, keys: impl IntoIterator<Item = &'k [u8]>) {
    out.extend_from_slice(verb.as_bytes());
    for key in keys {
        out.push(b' ');
        out.extend_from_slice(key);
    }
    end_line(out);
}

/// The line of a classic store: the value and [`end_data`] come next.
///
/// `exptime`: as memcached has it, 0 for no expiry.
pub fn store_header(out: &mut Vec<u8>, verb: &str, key: &[u8], flags: u32, exptime: u32, value_bytes: usize) {
    out.extend_from_slice(verb.as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    for n in [u64::from(flags), u64::from(exptime), value_bytes as u64] {
        out.push(b' ');
        number(out, n);
    }
    end_line(out);
}

/// Appends the line end that follows a value.
pub fn end_data(out: &mut Vec<u8>) {
    end_line(out);
}

/// A whole `set`.
pub fn set(out: &mut Vec<u8>, key: &[u8], flags: u32, exptime: u32, value: &[u8]) {
    store_header(out, "set", key, flags, exptime, value.len());
    out.extend_from_slice(value);
    end_data(out);
}

/// A meta command without a data block: `mg md ma me`, with these flags, letter and token together.
pub fn meta<'f>(out: &mut Vec<u8>, verb: &str, key: &[u8], flags: impl IntoIterator<Item = &'f [u8]>) {
    meta_line(out, verb, key, None, flags);
}

/// A whole `ms`.
pub fn meta_set<'f>(out: &mut Vec<u8>, key: &[u8], value: &[u8], flags: impl IntoIterator<Item = &'f [u8]>) {
    meta_line(out, "ms", key, Some(value.len()), flags);
    out.extend_from_slice(value);
    end_data(out);
}

fn meta_line<'f>(
    out: &mut Vec<u8>,
    verb: &str,
    key: &[u8],
    bytes: Option<usize>,
    flags: impl IntoIterator<Item = &'f [u8]>,
) {
    out.extend_from_slice(verb.as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    if let Some(bytes) = bytes {
        out.push(b' ');
        number(out, bytes as u64);
    }
    for flag in flags {
        out.push(b' ');
        out.extend_from_slice(flag);
    }
    end_line(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_as_memcached_reads_them() {
        let mut out = Vec::new();
        get(&mut out, "get", [&b"a"[..], b"b"]);
        set(&mut out, b"key", 5, 60, b"abc");
        meta(&mut out, "mg", b"key", [&b"v"[..], b"Oq"]);
        meta_set(&mut out, b"key", b"", [&b"T60"[..]]);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "get a b\r\nset key 5 60 3\r\nabc\r\nmg key v Oq\r\nms key 0 T60\r\n\r\n");
    }
}
