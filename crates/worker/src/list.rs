//! Lists of byte strings: the arguments of a job, the parts of a reply or an event.
//!
//! ```text
//! list   = varint count, count * (varint len, len bytes)
//! varint = 7 bits a byte, low bits first, high bit set on all bytes except the last; at most 5 bytes, < 2^32
//! ```
//!
//! # Invariant
//! A [`List`] was checked as a whole when it was made, so iterating over it cannot fail.

/// Appends a varint.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a list.
///
/// # Panics
/// When there are 2^32 parts or one is 4 GiB long; no frame can carry that.
pub fn put_list<P: AsRef<[u8]>>(out: &mut Vec<u8>, parts: &[P]) {
    put_varint(out, u32::try_from(parts.len()).expect("fewer than 2^32 parts"));
    for part in parts {
        put_part(out, part.as_ref());
    }
}

/// Bytes that [`put_list`] appends.
pub(crate) fn list_len<P: AsRef<[u8]>>(parts: &[P]) -> usize {
    parts.iter().map(|part| varint_len(part.as_ref().len()) + part.as_ref().len()).sum::<usize>()
        + varint_len(parts.len())
}

fn varint_len(value: usize) -> usize {
    (value.max(1).ilog2() as usize + 7) / 7
}

/// Appends one part of a list whose count was written before.
#[inline]
pub(crate) fn put_part(out: &mut Vec<u8>, part: &[u8]) {
    put_varint(out, u32::try_from(part.len()).expect("a part fits a frame"));
    out.extend_from_slice(part);
}

/// Reads a varint: the value and the bytes behind it. `None` if cut off or 2^32 and more.
#[inline]
fn take_varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (&first, mut rest) = bytes.split_first()?;
    if first < 0x80 {
        return Some((u32::from(first), rest));
    }
    let mut value = u64::from(first & 0x7f);
    for shift in [7, 14, 21, 28] {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((u32::try_from(value).ok()?, rest));
        }
    }
    None
}

/// A checked list, borrowed from the frame it came in. Iterating cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List<'a> {
    count: u32,
    parts: &'a [u8],
}

impl<'a> List<'a> {
    /// A list without parts.
    pub const EMPTY: Self = Self { count: 0, parts: &[] };

    /// Checks that `bytes` is exactly one list.
    ///
    /// `None` if it is cut off, has bytes behind it, or counts more parts than it has bytes for.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (count, parts) = take_varint(bytes)?;
        let mut rest = parts;
        for _ in 0..count {
            let (len, tail) = take_varint(rest)?;
            rest = tail.get(len as usize..)?;
        }
        rest.is_empty().then_some(Self { count, parts })
    }

    /// Number of parts.
    pub fn len(self) -> usize {
        self.count as usize
    }

    /// Whether there are no parts.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Part `index`, counted from 0; walks the parts before it.
    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        self.iter().nth(index)
    }

    /// The parts as they were encoded, without their count. Several of these after one common count are a
    /// longer list.
    pub fn encoded_parts(self) -> &'a [u8] {
        self.parts
    }

    /// The parts in order.
    pub fn iter(self) -> Parts<'a> {
        Parts { rest: self.parts }
    }
}

impl<'a> IntoIterator for List<'a> {
    type Item = &'a [u8];
    type IntoIter = Parts<'a>;

    fn into_iter(self) -> Parts<'a> {
        self.iter()
    }
}

/// Iterator over the parts of a [`List`].
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        // The list was checked when it was parsed; a cut here means the end.
        let (len, tail) = take_varint(self.rest)?;
        let part = tail.get(..len as usize)?;
        self.rest = &tail[len as usize..];
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_canonical_at_the_edges() {
        for (value, bytes) in [
            (0, &[0][..]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (16_383, &[0xff, 0x7f]),
            (16_384, &[0x80, 0x80, 1]),
            (u32::MAX, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(take_varint(&out), Some((value, &[][..])));
        }
        assert_eq!(take_varint(&[0xff, 0xff, 0xff, 0xff, 0x10]), None);
        assert_eq!(take_varint(&[0x80, 0x80, 0x80, 0x80, 0x80, 0]), None);
    }

    #[test]
    fn the_length_of_a_list_is_known_before_it_is_written() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
            let parts = [vec![1; len], vec![2; 3]];
            let mut out = Vec::new();
            put_list(&mut out, &parts);
            assert_eq!(list_len(&parts), out.len());
        }
        let many = vec![[0_u8; 0]; 200];
        let mut out = Vec::new();
        put_list(&mut out, &many);
        assert_eq!(list_len(&many), out.len());
    }

    #[test]
    fn a_list_is_whole_or_nothing_at_every_cut() {
        let mut out = Vec::new();
        put_list(&mut out, &[&b"key"[..], b"", &[7; 200]]);
        let list = List::parse(&out).unwrap();
        assert_eq!(list.iter().map(<[u8]>::len).collect::<Vec<_>>(), [3, 0, 200]);
        assert_eq!(list.get(0), Some(&b"key"[..]));
        assert_eq!(list.get(3), None);
        for cut in 0..out.len() {
            assert_eq!(List::parse(&out[..cut]), None, "cut at {cut}");
        }
        out.push(0);
        assert_eq!(List::parse(&out), None);
    }

    #[test]
    fn a_count_without_bytes_costs_nothing() {
        assert_eq!(List::parse(&[0xff, 0xff, 0xff, 0xff, 0x0f]), None);
    }
}
