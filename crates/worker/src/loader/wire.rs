//! The bytes of a loader's jobs and answers, for both sides: the cache writes jobs and reads answers, the SDK
//! the reverse.
//!
//! Both are lists ([`crate::list`]). A job is the list of arguments of a JOB frame, an answer the list of a
//! RESULT frame.
//!
//! ```text
//! job    = key, rule, hint, stale?, stale, (name, value)*     hint: empty for none; stale?: "1", or empty: no old value
//! answer = "V", value, ttl, flags, tag*                       ttl: whole seconds, empty: the rule's; flags: empty for 0
//!        | "N", ttl                                           not found; ttl: whole seconds above 0, empty: the rule's
//! ```
//! Numbers are decimal. Attempt and deadline of a job are fields of its JOB frame. A load that fails is an
//! ERROR frame.
//!
//! # Invariants
//! * Any bytes are parsed without a panic; a list that is accepted means the same when it is written again.
//! * An [`Answer`] has valid tags only, at most [`TAGS_MAX`].

use crate::list::{List, Parts, put_part, put_varint};

/// Most tags of a value.
pub const TAGS_MAX: usize = 8;
/// Longest tag in bytes.
pub const TAG_BYTES_MAX: usize = 200;
/// Parts of a job before its captures.
const JOB_PARTS: usize = 5;

/// A job of a loader: a key whose value is missing. Borrowed from its list.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Text of the rule's pattern: `page:{id}`.
    pub rule: &'a str,
    /// A client's hint about the value that it wants, never empty.
    pub hint: Option<&'a [u8]>,
    /// The old value, if there is one and the loader asks for it.
    pub stale: Option<&'a [u8]>,
    /// The texts that the captures of the rule's pattern matched, by name.
    pub captures: Captures<'a>,
}

impl<'a> Job<'a> {
    /// Reads the arguments of a JOB frame.
    ///
    /// # Errors
    /// When the list is not that of a loader's job; the text says what differs.
    pub fn parse(list: List<'a>) -> Result<Self, WireError> {
        let count = list.len();
        if count < JOB_PARTS || !(count - JOB_PARTS).is_multiple_of(2) {
            return Err(WireError::JobParts(count));
        }
        let mut parts = list.iter();
        let mut next = || parts.next().unwrap_or_default();
        let (key, rule, hint, has_stale, stale) = (next(), next(), next(), next(), next());
        let stale = match (has_stale, stale) {
            (b"1", stale) => Some(stale),
            (b"", b"") => None,
            _ => return Err(WireError::Stale),
        };
        Ok(Self {
            key,
            rule: std::str::from_utf8(rule).map_err(|_| WireError::Rule)?,
            hint: (!hint.is_empty()).then_some(hint),
            stale,
            captures: Captures(CaptureSource::Wire(parts)),
        })
    }
}

/// The parts of a job's list, in order. An empty `hint` is none.
pub fn job_parts<'a, N: AsRef<[u8]>, V: AsRef<[u8]>>(
    key: &'a [u8],
    rule: &'a str,
    hint: &'a [u8],
    stale: Option<&'a [u8]>,
    captures: &'a [(N, V)],
) -> Vec<&'a [u8]> {
    let mut parts = Vec::with_capacity(JOB_PARTS + 2 * captures.len());
    let has_stale: &[u8] = if stale.is_some() { b"1" } else { b"" };
    parts.extend([key, rule.as_bytes(), hint, has_stale, stale.unwrap_or_default()]);
    parts.extend(captures.iter().flat_map(|(name, value)| [name.as_ref(), value.as_ref()]));
    parts
}

/// Appends the list of a job, see [`job_parts`].
///
/// # Panics
/// When one part is 4 GiB long; no frame can carry that.
pub fn put_job<N: AsRef<[u8]>, V: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    key: &[u8],
    rule: &str,
    hint: &[u8],
    stale: Option<&[u8]>,
    captures: &[(N, V)],
) {
    crate::list::put_list(out, &job_parts(key, rule, hint, stale, captures));
}

/// Names and values of captures, in the order of the pattern.
#[derive(Debug, Clone)]
pub struct Captures<'a>(CaptureSource<'a>);

#[derive(Debug, Clone)]
enum CaptureSource<'a> {
    /// The remaining part of a checked list with an even number of parts.
    Wire(Parts<'a>),
    Pairs(std::slice::Iter<'a, (&'a str, &'a str)>),
}

impl<'a> Captures<'a> {
    /// Captures that come from no list.
    pub fn of(pairs: &'a [(&'a str, &'a str)]) -> Self {
        Self(CaptureSource::Pairs(pairs.iter()))
    }

    /// The bytes that the capture `name` matched; `None` if there is no such capture.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.clone().find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Captures<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            CaptureSource::Wire(parts) => Some((parts.next()?, parts.next()?)),
            CaptureSource::Pairs(pairs) => {
                pairs.next().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            }
        }
    }
}

/// A loader's answer to one job. Borrowed from its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The value.
    Value {
        /// The value's bytes.
        value: &'a [u8],
        /// Seconds for which it is fresh; 0: it does not expire; below 0: it is given to waiting clients and
        /// not kept; `None`: the rule's `ttl`.
        ttl: Option<i32>,
        /// Client flags.
        flags: u32,
        /// Tags in addition to those of the rule.
        tags: Tags<'a>,
    },
    /// There is no such value.
    NotFound {
        /// Seconds for which that is true, above 0; `None`: the rule's `negative_ttl`.
        ttl: Option<u32>,
    },
}

impl<'a> Answer<'a> {
    /// Reads the list of a RESULT frame.
    ///
    /// # Errors
    /// When the list is not an answer; the text says what is wrong and what is expected.
    pub fn parse(list: List<'a>) -> Result<Self, WireError> {
        let mut parts = list.iter();
        match (parts.next(), list.len()) {
            (Some(b"V"), 4..) => {
                let mut next = || parts.next().unwrap_or_default();
                let (value, ttl, flags) = (next(), next(), next());
                Ok(Self::Value {
                    value,
                    ttl: number(ttl).map_err(WireError::Ttl)?,
                    flags: number(flags).map_err(WireError::Flags)?.unwrap_or(0),
                    tags: Tags::new(parts)?,
                })
            }
            (Some(b"N"), 2) => {
                let part = parts.next().unwrap_or_default();
                let ttl = number(part).map_err(WireError::NegativeTtl)?;
                if valid_negative_ttl(ttl) {
                    return Ok(Self::NotFound { ttl });
                }
                Err(WireError::NegativeTtl(shown(part)))
            }
            (Some(kind @ (b"V" | b"N")), count) => Err(WireError::AnswerParts(shown(kind), count)),
            (Some(kind), _) => Err(WireError::AnswerKind(shown(kind))),
            (None, _) => Err(WireError::AnswerKind(String::new())),
        }
    }

    /// Appends the list of this answer. A negative TTL of 0, or beyond the largest, is written as it is and
    /// refused by the reader.
    ///
    /// # Panics
    /// When the value is 4 GiB long; no frame can carry that.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Value { value, ttl, flags, tags } => {
                put_varint(out, 4 + tags.len() as u32);
                put_part(out, b"V");
                put_part(out, value);
                put_number(out, *ttl);
                put_number(out, (*flags != 0).then_some(*flags));
                tags.iter().for_each(|tag| put_part(out, tag));
            }
            Self::NotFound { ttl } => {
                put_varint(out, 2);
                put_part(out, b"N");
                put_number(out, *ttl);
            }
        }
    }
}

/// Up to [`TAGS_MAX`] valid tags: 1 to [`TAG_BYTES_MAX`] bytes each, no blanks and no control characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tags<'a> {
    names: [&'a [u8]; TAGS_MAX],
    count: u8,
}

impl<'a> Tags<'a> {
    /// Checks tags.
    ///
    /// # Errors
    /// When there are too many, or one is not valid; the text names it.
    pub fn new(names: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        let mut tags = Self::default();
        for name in names {
            if name.is_empty() || name.len() > TAG_BYTES_MAX {
                return Err(WireError::TagLength(name.len(), shown(name)));
            }
            if name.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
                return Err(WireError::TagText(shown(name)));
            }
            let slot = tags.names.get_mut(usize::from(tags.count)).ok_or(WireError::TooManyTags)?;
            *slot = name;
            tags.count += 1;
        }
        Ok(tags)
    }
}

impl<'a> std::ops::Deref for Tags<'a> {
    type Target = [&'a [u8]];

    fn deref(&self) -> &Self::Target {
        &self.names[..usize::from(self.count)]
    }
}

/// Why bytes are not a loader's job or answer: a text for people that names what is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A job with this number of parts.
    #[error(
        "a loader's job has 5 arguments and 2 for each capture, not {0}: this worker serves loaders only, or is older than the server"
    )]
    JobParts(usize),
    /// The rule is not UTF-8.
    #[error("the rule of a loader's job is not UTF-8")]
    Rule,
    /// Parts 3 and 4 of a job contradict each other, or part 3 is an unknown word.
    #[error("part 3 of a loader's job is 1 (part 4 is the old value) or empty (so is part 4)")]
    Stale,
    /// An answer of an unknown kind.
    #[error(
        "an answer of a loader begins with V (value) or N (not found), not {0:?}; use the module `loader` of the SDK"
    )]
    AnswerKind(String),
    /// An answer of this kind with a wrong number of parts.
    #[error("an answer V has 4 parts and one for each tag, an answer N has 2; {0} came with {1}")]
    AnswerParts(String, usize),
    /// The TTL of a value.
    #[error("ttl is whole seconds, -2147483648 to 2147483647, or empty for the rule's, not {0:?}")]
    Ttl(String),
    /// The TTL of an answer that there is no value.
    #[error(
        "ttl of not found is whole seconds, 1 to 2147483647, or empty for the rule's negative_ttl, not {0:?}"
    )]
    NegativeTtl(String),
    /// Client flags.
    #[error("flags are a number, 0 to 4294967295, not {0:?}")]
    Flags(String),
    /// Too many tags.
    #[error("a value has at most {TAGS_MAX} tags")]
    TooManyTags,
    /// An empty tag, or a tag that is too long.
    #[error("a tag has 1 to {TAG_BYTES_MAX} bytes, not {0}: {1:?}")]
    TagLength(usize, String),
    /// A tag that no text command could name.
    #[error("a tag has no blanks and no control characters: {0:?}")]
    TagText(String),
}

/// Whether seconds are valid for an answer that there is no value.
pub(crate) fn valid_negative_ttl(ttl: Option<u32>) -> bool {
    ttl.is_none_or(|seconds| (1..=i32::MAX.unsigned_abs()).contains(&seconds))
}

/// A decimal number, `None` when the part is empty.
///
/// # Errors
/// With the part, for an error's text, when it is not a number of this type.
fn number<T: std::str::FromStr>(part: &[u8]) -> Result<Option<T>, String> {
    if part.is_empty() {
        return Ok(None);
    }
    // `parse` would take a plus.
    let text = std::str::from_utf8(part).ok().filter(|text| !text.starts_with('+'));
    text.and_then(|text| text.parse().ok()).map(Some).ok_or_else(|| shown(part))
}

fn put_number(out: &mut Vec<u8>, number: Option<impl ToString>) {
    put_part(out, number.map(|number| number.to_string()).unwrap_or_default().as_bytes());
}

/// The beginning of a part for an error's text.
fn shown(part: &[u8]) -> String {
    let head = String::from_utf8_lossy(&part[..part.len().min(SHOWN_MAX)]);
    if part.len() > SHOWN_MAX { format!("{head}...") } else { head.into_owned() }
}

/// Most bytes of a part that an error shows.
const SHOWN_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::put_list;

    fn answer(parts: &[&[u8]]) -> Result<String, String> {
        let mut bytes = Vec::new();
        put_list(&mut bytes, parts);
        let read = Answer::parse(List::parse(&bytes).unwrap());
        read.map(|answer| format!("{answer:?}")).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_at_their_edges() {
        for (ttl, ok) in [
            ("", true),
            ("0", true),
            ("-1", true),
            ("-2147483648", true),
            ("-2147483649", false),
            ("2147483647", true),
            ("2147483648", false),
            ("1.5", false),
            ("+1", false),
            (" 1", false),
            ("\u{664}", false),
        ] {
            let read = answer(&[b"V", b"", ttl.as_bytes(), b""]);
            assert_eq!(read.is_ok(), ok, "{ttl}: {read:?}");
            assert!(ok || read.unwrap_err().contains(ttl));
        }
        for (ttl, ok) in [
            ("", true),
            ("1", true),
            ("0", false),
            ("-1", false),
            ("2147483647", true),
            ("2147483648", false),
        ] {
            assert_eq!(answer(&[b"N", ttl.as_bytes()]).is_ok(), ok, "{ttl}");
        }
        for (flags, ok) in
            [("", true), ("0", true), ("4294967295", true), ("4294967296", false), ("-1", false)]
        {
            assert_eq!(answer(&[b"V", b"", b"", flags.as_bytes()]).is_ok(), ok, "{flags}");
        }
    }

    #[test]
    fn tags_at_their_edges() {
        let long = [b'x'; TAG_BYTES_MAX + 1];
        for (tags, error) in [
            (&[&long[1..]; 8][..], None),
            (&[&b"t"[..]; 9], Some("at most 8 tags")),
            (&[&long], Some("1 to 200 bytes, not 201: \"xxxx")),
            (&[&b"a"[..], b""], Some("1 to 200 bytes, not 0")),
            (&[&b"a b"[..]], Some("no blanks and no control characters: \"a b\"")),
            (&[&b"a\n"[..]], Some("no control characters: \"a\\n\"")),
            (&[&b"a\x7f"[..]], Some("no control characters")),
            (&["\u{fc}".as_bytes(), b"\xff"], None),
        ] {
            let parts = [&[&b"V"[..], b"v", b"", b""], tags].concat();
            match (answer(&parts), error) {
                (Ok(_), None) => {}
                (Err(text), Some(part)) => assert!(text.contains(part), "{text}"),
                (other, _) => panic!("{tags:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn other_lists_are_refused_with_a_text() {
        for (parts, text) in [
            (&[][..], "begins with V (value) or N (not found), not \"\""),
            (&[&b"X"[..]], "not \"X\""),
            (&[&b"a value without its kind, as a plain worker would send"[..]], "not \"a value without"),
            (&[&b"V"[..], b"v", b""], "V came with 3"),
            (&[&b"N"[..]], "N came with 1"),
            (&[&b"N"[..], b"", b"tag"], "N came with 3"),
        ] {
            assert!(answer(parts).unwrap_err().contains(text), "{:?}", answer(parts));
        }
        for (parts, error) in [
            (&[&b"k"[..], b"r", b"", b""][..], WireError::JobParts(4)),
            (&[b"k", b"r", b"", b"", b"", b"name"], WireError::JobParts(6)),
            (&[b"k", b"\xff", b"", b"", b""], WireError::Rule),
            (&[b"k", b"r", b"", b"", b"old"], WireError::Stale),
            (&[b"k", b"r", b"", b"0", b""], WireError::Stale),
        ] {
            let mut bytes = Vec::new();
            put_list(&mut bytes, parts);
            assert_eq!(Job::parse(List::parse(&bytes).unwrap()).unwrap_err(), error);
        }
    }

    #[test]
    fn an_empty_old_value_is_not_the_same_as_none() {
        for stale in [None, Some(&b""[..]), Some(b"old")] {
            let mut bytes = Vec::new();
            put_job(&mut bytes, b"k", "k", b"", stale, &[("id", "42")]);
            let list = List::parse(&bytes).unwrap();
            let job = Job::parse(list).unwrap();
            assert_eq!((job.stale, job.hint), (stale, None));
            assert_eq!((job.captures.get("id"), job.captures.get("no")), (Some(&b"42"[..]), None));
        }
    }
}
