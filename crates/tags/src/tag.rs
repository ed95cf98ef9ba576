//! Tags: names, their hashes, and lists of them; and the prefixes of keys, behind each of which names are
//! others.
//!
//! After parsing, a tag is its hash. Two tags with the same 64-bit hash are invalidated together: that can
//! cause an extra miss, never an old value.
//!
//! # Prefixes
//! Frameworks and clients put a text of their own before every key: `:1:` is Django's, `shop:production:` may
//! be that of a Rails application. Behind each such text are the same names: a key is matched by rules,
//! tagged and called as what follows its prefix. A prefix is a namespace of its own: the tag `user:7` behind
//! one is another than the tag `user:7` behind another one.
//!
//! # Invariants
//! * A list has at most [`TAGS_MAX`] tags, each once.
//! * A [`PrefixId`] of one [`Prefixes`] means the same text as long as the process runs: prefixes are fixed
//!   at the start.
//! * The longest prefix with which a key begins is its prefix.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// Longest tag in bytes.
pub const TAG_BYTES_MAX: usize = 200;
/// Most tags of an item.
pub const TAGS_MAX: usize = 8;

/// Longest line of tags at the beginning of a value in bytes, with [`TAG_LINE`] and the line break.
pub const TAG_LINE_MAX: usize = 2048;
/// The first bytes of a line of tags at the beginning of a value.
pub const TAG_LINE: &[u8] = b"@tags:";

/// The first line of a value, if it names the value's tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagLine<'v> {
    /// The value has no such line.
    None,
    /// The line names these tags; and its length in bytes, with its line break.
    Names(&'v [u8], usize),
    /// The line does not end within [`TAG_LINE_MAX`] bytes.
    Endless,
}

impl<'v> TagLine<'v> {
    /// The first line of a value that begins with `head`: at least [`TAG_LINE_MAX`] bytes of it, or all of
    /// it. The line break is `\n` or `\r\n`, of which each byte may have a backslash before it: so the npm
    /// package memcached sends them.
    #[inline]
    pub fn of(head: &'v [u8]) -> Self {
        if head.starts_with(TAG_LINE) { Self::read(head) } else { Self::None }
    }

    #[cold]
    fn read(head: &'v [u8]) -> Self {
        let head = &head[..head.len().min(TAG_LINE_MAX)];
        let Some(end) = head.iter().position(|&byte| byte == b'\n') else { return Self::Endless };
        let mut names = &head[TAG_LINE.len()..end];
        for last in [&b"\\"[..], b"\r", b"\\"] {
            names = names.strip_suffix(last).unwrap_or(names);
        }
        Self::Names(names, end + 1)
    }
}

/// A tag's hash: what items hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TagHash(u64);

impl TagHash {
    /// The hash of an item's tag, as [`TagHash::get`] returned it.
    pub const fn from_stored(hash: u64) -> Self {
        Self(hash)
    }

    /// The number that an item stores for it.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Hashes tags with a seed of this process, so that clients cannot choose tags that collide.
#[derive(Clone)]
pub struct TagHasher(Arc<RapidSecrets>);

impl Debug for TagHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagHasher(..)")
    }
}

impl TagHasher {
    /// A hasher for this seed, which may be the seed of the key hash: a tag's hash is not that of a key with
    /// its name.
    pub fn new(seed: u64) -> Self {
        // Any constant will do.
        const TAGS: u64 = u64::from_le_bytes(*b"tag hash");
        Self(Arc::new(RapidSecrets::seed(seed ^ TAGS)))
    }

    /// The hash of the tag with this name, taken as it is: rapidhash v3.
    ///
    /// # Errors
    /// When the name is empty or longer than [`TAG_BYTES_MAX`].
    pub fn hash(&self, name: &[u8]) -> Result<TagHash, TagError> {
        match name.len() {
            0 => Err(TagError::Empty),
            1..=TAG_BYTES_MAX => Ok(self.hash_made(name)),
            _ => Err(TagError::TooLong),
        }
    }

    /// The hash of a name that a rule makes from a key, whatever its length. Equal to [`TagHasher::hash`] for
    /// names that may be given.
    pub fn hash_made(&self, name: &[u8]) -> TagHash {
        TagHash(rapidhash_v3_inline::<true, true, false>(name, &self.0))
    }

    /// The hash of the tag with this hash behind a prefix: another tag than that without the prefix.
    #[inline]
    pub fn behind(&self, prefix: PrefixId, tag: TagHash) -> TagHash {
        if prefix == PrefixId::NONE {
            return tag;
        }
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&tag.0.to_le_bytes());
        bytes[8] = prefix.number();
        self.hash_made(&bytes)
    }

    /// The tags of `text`: names separated by commas, where `%2C` is a comma and `%25` a per cent sign. A tag
    /// that occurs twice counts once.
    ///
    /// # Errors
    /// When a name is empty (so in an empty text) or too long, when there are more than [`TAGS_MAX`], and on
    /// any other use of `%`.
    pub fn parse_list(&self, text: &[u8]) -> Result<TagList, TagError> {
        self.parse_list_behind(PrefixId::NONE, text)
    }

    /// Parses a list of tags behind a prefix.
    ///
    /// # Errors
    /// As [`TagHasher::parse_list`].
    pub fn parse_list_behind(&self, prefix: PrefixId, text: &[u8]) -> Result<TagList, TagError> {
        let mut list = TagList::new();
        for part in text.split(|&byte| byte == b',') {
            let mut room = [0; TAG_BYTES_MAX];
            list.insert(self.behind(prefix, self.hash(unescape(part, &mut room)?)?))?;
        }
        Ok(list)
    }

    /// Parses a list of tags from a text that is not part of a command, behind a prefix. A name with a blank
    /// or a control character, by which no command could invalidate it, is refused.
    ///
    /// # Errors
    /// As [`TagHasher::parse_list`], and when there is such a name.
    pub fn parse_text(&self, prefix: PrefixId, text: &[u8]) -> Result<TagList, TagError> {
        if text.iter().any(|&byte| byte <= b' ' || byte == 0x7f) {
            return Err(TagError::Blank);
        }
        self.parse_list_behind(prefix, text)
    }
}

/// Up to [`TAGS_MAX`] tags of an item, none twice, in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagList {
    hashes: [u64; TAGS_MAX],
    len: u8,
}

impl TagList {
    /// No tags.
    pub const fn new() -> Self {
        Self { hashes: [0; TAGS_MAX], len: 0 }
    }

    /// The tags of an item, of which there are at most [`TAGS_MAX`].
    pub(crate) fn of_item(hashes: impl IntoIterator<Item = u64>) -> Self {
        let mut list = Self::new();
        for hash in hashes {
            let fits = list.insert(TagHash(hash));
            debug_assert!(fits.is_ok(), "an item has at most eight tags");
        }
        list
    }

    /// Adds a tag if it is not there yet.
    ///
    /// # Errors
    /// When there are [`TAGS_MAX`] others; the list is unchanged then.
    pub fn insert(&mut self, tag: TagHash) -> Result<(), TagError> {
        if self.hashes().contains(&tag.0) {
            return Ok(());
        }
        let place = self.hashes.get_mut(usize::from(self.len)).ok_or(TagError::TooMany)?;
        *place = tag.0;
        self.len += 1;
        Ok(())
    }

    /// The tags of this list, followed by those of the other that are not in this one.
    ///
    /// # Errors
    /// When they are more than [`TAGS_MAX`].
    pub fn union(mut self, other: &Self) -> Result<Self, TagError> {
        other.hashes().iter().try_for_each(|&hash| self.insert(TagHash(hash)))?;
        Ok(self)
    }

    /// The hashes, as items hold them.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes[..usize::from(self.len)]
    }

    /// No tags.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Why a tag is refused. The text begins with "invalid tag".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TagError {
    /// The name has no bytes.
    Empty,
    /// The name has more than [`TAG_BYTES_MAX`] bytes.
    TooLong,
    /// An item would have more than [`TAGS_MAX`].
    TooMany,
    /// A `%` is followed by something other than `2C` or `25`.
    Escape,
    /// The name has a blank or a control character.
    Blank,
    /// The line that names it does not end.
    Endless,
}

impl Display for TagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("invalid tag: it is empty"),
            Self::TooLong => write!(f, "invalid tag: it is longer than {TAG_BYTES_MAX} bytes"),
            Self::TooMany => write!(f, "invalid tag: an item has at most {TAGS_MAX}"),
            Self::Escape => f.write_str("invalid tag: write a comma as %2C and a per cent sign as %25"),
            Self::Blank => f.write_str("invalid tag: it has a blank or a control character"),
            Self::Endless => {
                write!(f, "invalid tag: a line of tags ends with a line break, within {TAG_LINE_MAX} bytes")
            }
        }
    }
}

impl std::error::Error for TagError {}

/// `part` with its escapes resolved, put into `room` if it has any.
fn unescape<'a>(part: &'a [u8], room: &'a mut [u8; TAG_BYTES_MAX]) -> Result<&'a [u8], TagError> {
    if !part.contains(&b'%') {
        return Ok(part);
    }
    let (mut rest, mut len) = (part, 0);
    while let [byte, after @ ..] = rest {
        let byte = match (byte, after) {
            (b'%', [b'2', b'C' | b'c', after @ ..]) => {
                rest = after;
                b','
            }
            (b'%', [b'2', b'5', after @ ..]) => {
                rest = after;
                b'%'
            }
            (b'%', _) => return Err(TagError::Escape),
            (&byte, after) => {
                rest = after;
                byte
            }
        };
        *room.get_mut(len).ok_or(TagError::TooLong)? = byte;
        len += 1;
    }
    Ok(&room[..len])
}

/// Most prefixes of a server.
pub const PREFIXES_MAX: usize = 32;
/// Longest prefix in bytes.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Which of its server's prefixes a key has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PrefixId(u8);

impl PrefixId {
    /// The key has none.
    pub const NONE: Self = Self(0);

    /// The prefix's number, at most [`PREFIXES_MAX`]; 0: none.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// That of a number which [`PrefixId::number`] has returned.
    pub const fn of_number(number: u8) -> Self {
        Self(number)
    }
}

/// All prefixes of a server. Copies share them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prefixes(Option<Arc<PrefixList>>);

#[derive(Debug, PartialEq, Eq)]
struct PrefixList {
    /// By their numbers, from 1 on.
    texts: Box<[Box<[u8]>]>,
    /// Their numbers, the longest first.
    longest_first: Box<[u8]>,
    /// Bytes with which they begin, as bits.
    first: [u64; 4],
}

/// Why prefixes are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixError {
    /// There are more than [`PREFIXES_MAX`].
    TooMany(usize),
    /// This one, counted from 0, is empty or has more than [`PREFIX_BYTES_MAX`] bytes.
    Length(usize),
    /// This one, counted from 0, is there twice.
    Twice(usize),
}

impl Prefixes {
    /// No prefixes.
    pub const fn none() -> Self {
        Self(None)
    }

    /// The prefixes in the order of a rule file.
    ///
    /// # Errors
    /// There are too many, or one is empty, too long, or there twice.
    pub fn new<T: AsRef<[u8]>>(texts: &[T]) -> Result<Self, PrefixError> {
        if texts.len() > PREFIXES_MAX {
            return Err(PrefixError::TooMany(texts.len()));
        }
        let mut first = [0; 4];
        for (place, text) in texts.iter().enumerate() {
            let text = text.as_ref();
            let Some(byte) = text.first().map(|byte| usize::from(*byte)) else {
                return Err(PrefixError::Length(place));
            };
            if text.len() > PREFIX_BYTES_MAX {
                return Err(PrefixError::Length(place));
            }
            if texts[..place].iter().any(|earlier| earlier.as_ref() == text) {
                return Err(PrefixError::Twice(place));
            }
            first[byte / 64] |= 1_u64 << (byte % 64);
        }
        let texts: Box<[Box<[u8]>]> = texts.iter().map(|text| text.as_ref().into()).collect();
        let mut longest_first: Box<[u8]> = (1..).take(texts.len()).collect();
        longest_first.sort_by_key(|number| std::cmp::Reverse(texts[usize::from(*number) - 1].len()));
        Ok(Self((!texts.is_empty()).then(|| Arc::new(PrefixList { texts, longest_first, first }))))
    }

    /// Which prefix a key has, and what follows it.
    #[inline]
    pub fn split<'k>(&self, key: &'k [u8]) -> (PrefixId, &'k [u8]) {
        match &self.0 {
            None => (PrefixId::NONE, key),
            Some(list) => list.split(key),
        }
    }

    /// The text of a prefix; empty for none.
    pub fn text(&self, prefix: PrefixId) -> &[u8] {
        let place = usize::from(prefix.0).wrapping_sub(1);
        self.0.as_ref().and_then(|list| list.texts.get(place)).map_or(&[], |text| text)
    }

    /// The prefix with this text.
    pub fn find(&self, text: &[u8]) -> Option<PrefixId> {
        self.all().find(|(_, own)| *own == text).map(|(prefix, _)| prefix)
    }

    /// All prefixes, in the order in which they were given.
    pub fn all(&self) -> impl Iterator<Item = (PrefixId, &[u8])> {
        let texts = self.0.as_ref().map_or(&[][..], |list| &list.texts);
        (1..).map(PrefixId).zip(texts.iter().map(|text| &**text))
    }

    /// There are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl PrefixList {
    fn split<'k>(&self, key: &'k [u8]) -> (PrefixId, &'k [u8]) {
        let first = usize::from(*key.first().unwrap_or(&0));
        if self.first[first / 64] >> (first % 64) & 1 != 0 {
            for number in &self.longest_first {
                if let Some(rest) = key.strip_prefix(&*self.texts[usize::from(*number) - 1]) {
                    return (PrefixId(*number), rest);
                }
            }
        }
        (PrefixId::NONE, key)
    }
}

impl Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(count) => write!(f, "{count} prefixes; at most {PREFIXES_MAX}"),
            Self::Length(_) => write!(f, "a prefix has 1 to {PREFIX_BYTES_MAX} bytes"),
            Self::Twice(_) => f.write_str("a prefix is there twice"),
        }
    }
}

impl std::error::Error for PrefixError {}

#[cfg(test)]
mod tests;
