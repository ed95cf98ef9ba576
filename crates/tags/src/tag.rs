//! Tags: names, their hashes, and lists of them.
//!
//! After parsing, a tag is its hash. Two tags with the same 64-bit hash are invalidated together: that can
//! cause an extra miss, never an old value.
//!
//! # Invariant
//! A list has at most [`TAGS_MAX`] tags, each once.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

use crate::prefix::PrefixId;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn hasher() -> TagHasher {
        TagHasher::new(7)
    }

    fn hashes(names: &[&[u8]]) -> Vec<u64> {
        names.iter().map(|name| hasher().hash(name).unwrap().get()).collect()
    }

    #[test]
    fn a_list_is_split_at_commas() {
        let list = hasher().parse_list(b"user:12543,product:54929873").unwrap();
        assert_eq!(list.hashes(), hashes(&[b"user:12543", b"product:54929873"]));
    }

    #[test]
    fn escapes_stand_for_comma_and_per_cent_sign() {
        let list = hasher().parse_list(b"a%2Cb,100%25,%252C,%2c").unwrap();
        assert_eq!(list.hashes(), hashes(&[b"a,b", b"100%", b"%2C", b","]));
    }

    #[test]
    fn other_escapes_are_refused() {
        for text in [&b"%"[..], b"a%", b"%2", b"a%2,b", b"%20", b"%41", b"%%", b"a,b%2X"] {
            assert_eq!(hasher().parse_list(text), Err(TagError::Escape), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn tags_have_1_to_200_bytes() {
        for text in [&b""[..], b",", b"a,", b",a", b"a,,b"] {
            assert_eq!(hasher().parse_list(text), Err(TagError::Empty), "{}", text.escape_ascii());
        }
        let mut name = vec![b'x'; 200];
        assert!(hasher().hash(&name).is_ok() && hasher().parse_list(&name).is_ok());
        name.push(b'x');
        assert_eq!(hasher().hash(&name), Err(TagError::TooLong));
        assert_eq!(hasher().parse_list(&name), Err(TagError::TooLong));
        assert_eq!(hasher().parse_list(&b"%25".repeat(200)).unwrap().hashes(), hashes(&[&[b'%'; 200]]));
        assert_eq!(hasher().parse_list(&b"%25".repeat(201)), Err(TagError::TooLong));
    }

    #[test]
    fn an_item_has_at_most_8_tags_and_none_twice() {
        assert_eq!(hasher().parse_list(b"a,b,c,d,e,f,g,h").unwrap().hashes().len(), 8);
        assert_eq!(hasher().parse_list(b"a,b,c,d,e,f,g,h,i"), Err(TagError::TooMany));
        assert_eq!(hasher().parse_list(b"a,b,c,d,e,f,g,h,a,b").unwrap().hashes().len(), 8);
        assert_eq!(hasher().parse_list(b"b,a,b,a").unwrap().hashes(), hashes(&[b"b", b"a"]));
    }

    #[test]
    fn a_union_has_each_tag_once() {
        let parse = |text: &str| hasher().parse_list(text.as_bytes()).unwrap();
        assert_eq!(parse("a,b,c").union(&parse("d,c,a")), Ok(parse("a,b,c,d")));
        assert_eq!(TagList::new().union(&TagList::new()), Ok(TagList::new()));
        assert_eq!(parse("a,b,c,d,e,f").union(&parse("f,g,h")).map(|list| list.hashes().len()), Ok(8));
        assert_eq!(parse("a,b,c,d,e,f").union(&parse("g,h,i")), Err(TagError::TooMany));
    }

    #[test]
    fn a_text_has_no_blanks_or_control_characters() {
        assert_eq!(
            hasher().parse_text(PrefixId::NONE, b"user:1,a%2Cb"),
            hasher().parse_list(b"user:1,a%2Cb")
        );
        for text in [&b"a b"[..], b"a, b", b"a\r", b"a\tb", b"\x7f", b"a\0", b"a\n"] {
            assert_eq!(
                hasher().parse_text(PrefixId::NONE, text),
                Err(TagError::Blank),
                "{}",
                text.escape_ascii()
            );
        }
        assert_eq!(hasher().parse_text(PrefixId::NONE, b""), Err(TagError::Empty));
        assert!(hasher().parse_text(PrefixId::NONE, "k\u{e4}se".as_bytes()).is_ok());
    }

    #[test]
    fn the_first_line_of_a_value() {
        for (value, line) in [
            (&b""[..], TagLine::None),
            (b"@tags", TagLine::None),
            (b"@tag:a\nx", TagLine::None),
            (b" @tags:a\nx", TagLine::None),
            (b"@tags:\n", TagLine::Names(b"", 7)),
            (b"@tags:a\n", TagLine::Names(b"a", 8)),
            (b"@tags:a,b\r\nx\n", TagLine::Names(b"a,b", 11)),
            (b"@tags:a\r\r\nx", TagLine::Names(b"a\r", 10)),
            (b"@tags:a,b\\\nx", TagLine::Names(b"a,b", 11)),
            (b"@tags:a\\\r\\\nx", TagLine::Names(b"a", 11)),
            (b"@tags:a", TagLine::Endless),
            (b"@tags:", TagLine::Endless),
        ] {
            assert_eq!(TagLine::of(value), line, "{}", value.escape_ascii());
        }
        let mut long = [TAG_LINE, &[b'x'; TAG_LINE_MAX - TAG_LINE.len() - 1], b"\n"].concat();
        assert!(matches!(TagLine::of(&long), TagLine::Names(_, TAG_LINE_MAX)));
        long.insert(7, b'x');
        assert_eq!(TagLine::of(&long), TagLine::Endless);
    }

    #[test]
    fn hashes_depend_on_seed_and_name() {
        let other = TagHasher::new(8);
        assert_ne!(hasher().hash(b"a"), other.hash(b"a"));
        assert_ne!(hasher().hash(b"a"), hasher().hash(b"b"));
        assert_eq!(hasher().hash(b"a"), hasher().clone().hash(b"a"));
        let key_hash = rapidhash_v3_inline::<true, true, false>(b"a", &RapidSecrets::seed(7));
        assert_ne!(hasher().hash(b"a").map(TagHash::get), Ok(key_hash));
    }

    #[test]
    fn messages_name_the_tag() {
        for error in [
            TagError::Empty,
            TagError::TooLong,
            TagError::TooMany,
            TagError::Escape,
            TagError::Blank,
            TagError::Endless,
        ] {
            assert!(error.to_string().starts_with("invalid tag"), "{error}");
        }
    }
}
