//! The arguments of a call: the unescaped parts of a name after the object's key.

use std::borrow::Cow;

use arrayvec::ArrayVec;

/// The most arguments of a client's call, as many as fit into a key of 250 bytes.
pub const ARGUMENTS_MAX: usize = 128;

/// The number of arguments that are kept without an allocation.
const FEW: usize = 6;

/// The arguments of a call.
#[derive(Debug, Clone, Default)]
pub struct Arguments<'a> {
    few: ArrayVec<&'a [u8], FEW>,
    /// The arguments after the first [`FEW`].
    more: Vec<&'a [u8]>,
}

impl<'a> Arguments<'a> {
    /// An empty list of arguments.
    pub fn none() -> Self {
        Self::default()
    }

    /// Arguments from a list of any length.
    pub fn of(list: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut list = list.into_iter();
        Self { few: list.by_ref().take(FEW).collect(), more: list.collect() }
    }

    /// Adds an argument; false: there are [`ARGUMENTS_MAX`] already.
    pub(crate) fn push(&mut self, argument: &'a [u8]) -> bool {
        if self.few.try_push(argument).is_err() {
            if self.len() >= ARGUMENTS_MAX {
                return false;
            }
            self.more.push(argument);
        }
        true
    }

    /// The number of arguments.
    pub fn len(&self) -> usize {
        self.few.len() + self.more.len()
    }

    /// Whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.few.is_empty()
    }

    /// The argument at this position, counted from 0.
    pub fn get(&self, place: usize) -> Option<&'a [u8]> {
        match place.checked_sub(FEW) {
            None => self.few.get(place).copied(),
            Some(place) => self.more.get(place).copied(),
        }
    }

    /// All arguments, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.few.iter().chain(&self.more).copied()
    }
}

/// Appends `text` without its escapes: `%3A` becomes `:` and `%25` becomes `%`; any other `%` stays.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    unescape_if(text, out, |byte| matches!(byte, b':' | b'%'));
}

/// The text without its escapes, copied only if it has any.
pub(crate) fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'%', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    unescape(text, &mut out);
    Cow::Owned(out)
}

/// Appends an object's key in the form that follows `type::`, which [`unescape`] reverses: a `%` that would
/// begin an escape becomes `%25`, any other byte stays.
pub(crate) fn escape_key(mut key: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = memchr::memchr(b'%', key) {
        out.extend_from_slice(&key[..at]);
        let is_escape =
            key.get(at + 1..at + 3).and_then(hexadecimal).is_some_and(|byte| matches!(byte, b':' | b'%'));
        out.extend_from_slice(if is_escape { b"%25" } else { b"%" });
        key = &key[at + 1..];
    }
    out.extend_from_slice(key);
}

/// Appends a flag's token without its escapes: `%` and two hexadecimal digits become a byte; any other `%`
/// stays.
pub fn unescape_flag(text: &[u8], out: &mut Vec<u8>) {
    unescape_if(text, out, |_| true);
}

fn unescape_if(mut text: &[u8], out: &mut Vec<u8>, is_escaped: impl Fn(u8) -> bool) {
    while let Some(at) = memchr::memchr(b'%', text) {
        out.extend_from_slice(&text[..at]);
        let byte = text.get(at + 1..at + 3).and_then(hexadecimal).filter(|byte| is_escaped(*byte));
        if let Some(byte) = byte {
            out.push(byte);
            text = &text[at + 3..];
        } else {
            out.push(b'%');
            text = &text[at + 1..];
        }
    }
    out.extend_from_slice(text);
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many() {
        let text = [0_u8; 200];
        for count in [0, 1, FEW - 1, FEW, FEW + 1, ARGUMENTS_MAX, text.len()] {
            let all: Vec<&[u8]> = (0..count).map(|end| &text[..end]).collect();
            let arguments = Arguments::of(all.iter().copied());
            assert_eq!((arguments.len(), arguments.is_empty()), (count, count == 0));
            assert!(arguments.iter().eq(all.iter().copied()));
            assert!((0..count).all(|place| arguments.get(place) == Some(all[place])));
            assert_eq!(arguments.get(count), None);
        }
        let mut full = Arguments::of((1..ARGUMENTS_MAX).map(|_| &text[..]));
        assert!(full.push(b"the last") && !full.push(b"one more"));
        assert_eq!(full.len(), ARGUMENTS_MAX);
    }

    #[test]
    fn escapes() {
        let undone = |text: &[u8], undo: fn(&[u8], &mut Vec<u8>)| {
            let mut out = Vec::new();
            undo(text, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(undone(b"a%3Ab%3ac%25%20%", unescape), "a:b:c%%20%");
        assert_eq!(undone(b"%253A", unescape), "%3A", "once");
        assert_eq!(undone(b"a%3Ab%20%2c%4", unescape_flag), "a:b ,%4");
        assert_eq!(undone(b"%", unescape), "%");
        assert_eq!(undone(b"%g1%", unescape_flag), "%g1%");
    }
}
