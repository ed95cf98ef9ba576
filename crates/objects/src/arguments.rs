//! Arguments of a call: the parts of a name after the object's key, with escapes undone.

use arrayvec::ArrayVec;

/// Most arguments of a call: a key of 250 bytes has no more.
pub const ARGUMENTS_MAX: usize = 128;

/// Arguments that need no allocation. Few, since the list is moved.
const FEW: usize = 6;

/// The arguments of a call.
#[derive(Debug, Clone, Default)]
pub struct Arguments<'a> {
    few: ArrayVec<&'a [u8], FEW>,
    /// All of them, if they are more than [`FEW`].
    all: Vec<&'a [u8]>,
}

impl<'a> Arguments<'a> {
    /// No arguments.
    pub fn none() -> Self {
        Self::default()
    }

    /// These. More than [`ARGUMENTS_MAX`] are left out: callers have fewer.
    pub fn of(list: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut arguments = Self::none();
        for argument in list {
            if !arguments.push(argument) {
                break;
            }
        }
        arguments
    }

    /// Adds one; false: there are too many.
    pub(crate) fn push(&mut self, argument: &'a [u8]) -> bool {
        if self.all.is_empty() && self.few.try_push(argument).is_ok() {
            return true;
        }
        if self.all.is_empty() {
            self.all.extend(&self.few);
        }
        if self.all.len() == ARGUMENTS_MAX {
            return false;
        }
        self.all.push(argument);
        true
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.list().len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.few.is_empty()
    }

    /// The argument at this place, counted from 0.
    pub fn get(&self, place: usize) -> Option<&'a [u8]> {
        self.list().get(place).copied()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.list().iter().copied()
    }

    #[inline]
    fn list(&self) -> &[&'a [u8]] {
        if self.all.is_empty() { &self.few } else { &self.all }
    }
}

/// Undoes the escapes of a classic name: `%3A` is `:` and `%25` is `%`; any other `%` stays.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    unescape_if(text, out, |byte| matches!(byte, b':' | b'%'));
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
    fn as_many_as_there_are() {
        let one: &[u8] = b"x";
        for count in [0, 1, FEW, FEW + 1, ARGUMENTS_MAX] {
            let mut arguments = Arguments::of(std::iter::repeat_n(one, count));
            assert_eq!((arguments.len(), arguments.iter().count()), (count, count));
            assert_eq!(arguments.is_empty(), count == 0);
            assert_eq!(arguments.get(count), None);
            assert_eq!(arguments.push(one), count < ARGUMENTS_MAX);
        }
        assert_eq!(Arguments::of(std::iter::repeat_n(one, 500)).len(), ARGUMENTS_MAX);
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
