//! Arguments of a call: the parts of a name after the object's key, with escapes undone.

use std::borrow::Cow;

use arrayvec::ArrayVec;

/// Most arguments of a client's call: a key of 250 bytes has no more.
pub const ARGUMENTS_MAX: usize = 128;

/// Arguments that need no memory of their own.
const FEW: usize = 6;

/// The arguments of a call.
#[derive(Debug, Clone, Default)]
pub struct Arguments<'a> {
    few: ArrayVec<&'a [u8], FEW>,
    /// Those after the first [`FEW`].
    more: Vec<&'a [u8]>,
}

impl<'a> Arguments<'a> {
    /// No arguments.
    pub fn none() -> Self {
        Self::default()
    }

    /// These, however many they are.
    pub fn of(list: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut list = list.into_iter();
        Self { few: list.by_ref().take(FEW).collect(), more: list.collect() }
    }

    /// Adds one; false: a client's call has no more than [`ARGUMENTS_MAX`].
    pub(crate) fn push(&mut self, argument: &'a [u8]) -> bool {
        if self.few.try_push(argument).is_err() {
            if self.len() >= ARGUMENTS_MAX {
                return false;
            }
            self.more.push(argument);
        }
        true
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.few.len() + self.more.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.few.is_empty()
    }

    /// The argument at this place, counted from 0.
    pub fn get(&self, place: usize) -> Option<&'a [u8]> {
        match place.checked_sub(FEW) {
            None => self.few.get(place).copied(),
            Some(place) => self.more.get(place).copied(),
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.few.iter().chain(&self.more).copied()
    }
}

/// Undoes the escapes of a name: `%3A` is `:` and `%25` is `%`; any other `%` stays.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    unescape_if(text, out, |byte| matches!(byte, b':' | b'%'));
}

/// The same of a text that seldom has escapes.
pub(crate) fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'%', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    unescape(text, &mut out);
    Cow::Owned(out)
}

/// Appends an object's key as it is written behind `type::`, so that [`unescape`] gives it back: a `%` that would begin an escape
/// is `%25`, any other byte is itself.
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

/// Undoes the escapes of a flag's token: `%` and two hexadecimal digits are a byte; any other `%` stays.
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
