//! Patterns of keys, and templates of tags: literal text and captures. A tag's template is rendered from what
//! the pattern of its rule captures.
//!
//! `{name}` is one or more bytes up to the next occurrence of the literal that follows it in the pattern, or
//! up to the end, and never contains `:`. `{name:int}` is the same with digits only. `{name*}`, which may
//! only be the last capture, is the rest of the key, one or more bytes, `:` included. `{{` and `}}` are
//! braces. Two captures never touch.
//!
//! A capture ends where its literal first occurs, so a key is read once, from left to right, without
//! backtracking: `{a}-{n:int}` does not match `x-y-1`, since `a` ends at the first dash.

use cattlegrid_protocol::KEY_MAX;
use cattlegrid_tags::PrefixId;

/// Most captures of a pattern.
pub const CAPTURES_MAX: usize = 8;

/// A pattern of keys: literal text and captures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    /// The literal before the first capture, with which every key begins.
    pub(crate) prefix: Box<[u8]>,
    pub(crate) captures: Box<[Capture]>,
}

/// A capture and what follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capture {
    name: Box<str>,
    pub(crate) class: ByteClass,
    /// The literal up to the next capture or the end; empty only at the end.
    pub(crate) then: Box<[u8]>,
}

/// The class of bytes that a capture may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteClass {
    /// All bytes except `:`.
    Segment,
    /// Digits.
    Int,
    /// All bytes. Only for the last capture.
    Rest,
}

impl ByteClass {
    #[inline]
    pub(crate) fn has(self, byte: u8) -> bool {
        match self {
            Self::Segment => byte != b':',
            Self::Int => byte.is_ascii_digit(),
            Self::Rest => true,
        }
    }

    /// Whether every byte of `other` is in this class.
    pub(crate) fn includes(self, other: Self) -> bool {
        self == other || self == Self::Rest || (self == Self::Segment && other == Self::Int)
    }
}

/// Why a text is not a pattern, or not a tag of one. The message continues a sentence that began with the
/// text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// A `{` without its `}`.
    #[error("has a {{ that no }} ends; write {{{{ for a brace")]
    Open,
    /// A `}` without its `{`.
    #[error("has a }} that no {{ begins; write }}}} for a brace")]
    Close,
    /// The text between braces is not a name.
    #[error("{{{0}}}: a name has letters, digits and _, and begins with no digit")]
    Name(String),
    /// A capture of an unknown type.
    #[error("{{{0}:{1}}}: unknown type; write {{{0}}}, {{{0}:int}} or {{{0}*}}")]
    Type(String, String),
    /// One name twice.
    #[error("{{{0}}} is there twice; each capture needs its own name")]
    Twice(String),
    /// Two captures without a literal between them.
    #[error("{{{0}}} and {{{1}}} touch; put a literal between them")]
    Touching(String, String),
    /// Something follows `{name*}`.
    #[error("{{{0}*}} takes the rest of the key, so nothing may follow it")]
    AfterRest(String),
    /// More than [`CAPTURES_MAX`].
    #[error("has {0} captures; at most {CAPTURES_MAX}")]
    Captures(usize),
    /// A blank or a control character.
    #[error("has a blank or control character, which no pattern may have")]
    Blank,
    /// The shortest key would exceed [`KEY_MAX`].
    #[error("matches keys of {0} bytes or more only; keys have at most {KEY_MAX}")]
    Long(usize),
    /// A tag uses a capture that the pattern does not have.
    #[error("{{{name}}}: the pattern has no such capture; {}", has(.captures))]
    Unbound {
        /// The capture that the tag names.
        name: String,
        /// The captures of the pattern, in order.
        captures: Vec<String>,
    },
    /// A capture in a tag with more than its name.
    #[error("{{{0}}}: in a tag a capture is its name only, {{{1}}}")]
    Typed(String, String),
    /// A tag whose literal text alone is too long.
    #[error("has {0} bytes beside its captures; a tag has at most {max}", max = super::TAG_BYTES_MAX)]
    LongTag(usize),
}

fn has(captures: &[String]) -> String {
    match captures {
        [] => "it has none".to_owned(),
        names => format!("it has {{{}}}", names.join("}, {")),
    }
}

impl Pattern {
    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let mut prefix = Vec::new();
        let mut captures: Vec<Capture> = Vec::new();
        for piece in pieces(text)? {
            match piece {
                PatternPiece::Literal(literal) => match captures.last_mut() {
                    None => prefix = literal,
                    Some(Capture { name, class: ByteClass::Rest, .. }) => {
                        return Err(PatternError::AfterRest(name.to_string()));
                    }
                    Some(capture) => capture.then = literal.into(),
                },
                PatternPiece::Braces(inner) => {
                    let (name, class) = read_capture(inner)?;
                    if captures.iter().any(|capture| *capture.name == *name) {
                        return Err(PatternError::Twice(name.to_owned()));
                    }
                    match captures.last() {
                        Some(Capture { name, class: ByteClass::Rest, .. }) => {
                            return Err(PatternError::AfterRest(name.to_string()));
                        }
                        Some(last) if last.then.is_empty() => {
                            return Err(PatternError::Touching(last.name.to_string(), name.to_owned()));
                        }
                        _ => {}
                    }
                    captures.push(Capture { name: name.into(), class, then: Box::default() });
                }
            }
        }
        if captures.len() > CAPTURES_MAX {
            return Err(PatternError::Captures(captures.len()));
        }
        let pattern = Self { text: text.into(), prefix: prefix.into(), captures: captures.into() };
        match pattern.shortest() {
            0 => Err(PatternError::Empty),
            bytes if bytes > KEY_MAX => Err(PatternError::Long(bytes)),
            _ => Ok(pattern),
        }
    }

    /// The pattern as it was written. Two rules never share it, so it identifies a rule.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of its captures, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.captures.iter().map(|capture| &*capture.name)
    }

    /// Length of the shortest key that it matches, in bytes.
    pub(crate) fn shortest(&self) -> usize {
        self.prefix.len() + self.captures.iter().map(|capture| 1 + capture.then.len()).sum::<usize>()
    }

    /// The literal after the last capture, with which every key ends; the whole pattern if it has no capture.
    pub(crate) fn suffix(&self) -> &[u8] {
        self.captures.last().map_or(&self.prefix, |capture| &capture.then)
    }

    /// The bytes of the captures if the pattern matches the whole of `key`. Keys longer than [`KEY_MAX`] do
    /// not match.
    #[inline]
    pub fn match_key<'k>(&self, key: &'k [u8]) -> Option<Captures<'k>> {
        if key.len() > KEY_MAX || !key.starts_with(&self.prefix) {
            return None;
        }
        let (spans, len) = ([(0, 0); CAPTURES_MAX], self.captures.len() as u8);
        let mut captures = Captures { key, spans, len, prefix: PrefixId::NONE };
        let mut at = self.prefix.len();
        for (capture, span) in self.captures.iter().zip(&mut captures.spans) {
            let end = capture.end(key, at)?;
            // Both are at most KEY_MAX, 250.
            *span = (at as u8, end as u8);
            at = end + capture.then.len();
        }
        (at == key.len()).then_some(captures)
    }
}

impl Capture {
    /// The end of the capture that begins at `at`, if its literal follows and all its bytes are allowed.
    #[inline]
    fn end(&self, key: &[u8], at: usize) -> Option<usize> {
        let rest = key.get(at..).filter(|rest| !rest.is_empty())?;
        let Some((first, tail)) = self.then.split_first() else {
            return rest.iter().all(|byte| self.class.has(*byte)).then_some(key.len());
        };
        for (index, byte) in rest.iter().enumerate() {
            if byte == first && index > 0 && rest[index + 1..].starts_with(tail) {
                return Some(at + index);
            }
            if !self.class.has(*byte) {
                return None;
            }
        }
        None
    }
}

/// The bytes of a key that the captures of a pattern hold.
#[derive(Debug, Clone, Copy)]
pub struct Captures<'k> {
    key: &'k [u8],
    /// Begin and end in the key.
    spans: [(u8, u8); CAPTURES_MAX],
    len: u8,
    /// The prefix before the key.
    prefix: PrefixId,
}

impl<'k> Captures<'k> {
    /// The bytes of a capture, by its place in the pattern from 0; None beyond the last.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'k [u8]> {
        let (begin, end) = *self.spans[..usize::from(self.len)].get(index)?;
        Some(&self.key[usize::from(begin)..usize::from(end)])
    }

    /// These captures, of a key behind this prefix.
    pub(crate) fn behind(mut self, prefix: PrefixId) -> Self {
        self.prefix = prefix;
        self
    }

    /// The key that was matched, without the prefix.
    pub fn name(&self) -> &'k [u8] {
        self.key
    }

    /// The prefix before the key that was matched.
    pub fn prefix(&self) -> PrefixId {
        self.prefix
    }

    /// The captures in order.
    pub fn iter(&self) -> impl Iterator<Item = &'k [u8]> {
        (0..usize::from(self.len)).filter_map(|index| self.get(index))
    }
}

/// A part of a pattern or of a tag.
pub(crate) enum PatternPiece<'t> {
    /// Literal text, with doubled braces made single.
    Literal(Vec<u8>),
    /// The text between braces.
    Braces(&'t str),
}

/// The parts of `text`; literals are never empty and never touch.
pub(crate) fn pieces(text: &str) -> Result<Vec<PatternPiece<'_>>, PatternError> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(PatternError::Blank);
    }
    let mut pieces = Vec::new();
    let mut literal = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        literal.extend_from_slice(&rest.as_bytes()[..at]);
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            literal.extend_from_slice(brace.as_bytes());
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(PatternError::Close);
        }
        let (inner, after) = after.split_once('}').ok_or(PatternError::Open)?;
        if !literal.is_empty() {
            pieces.push(PatternPiece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(PatternPiece::Braces(inner));
        rest = after;
    }
    literal.extend_from_slice(rest.as_bytes());
    if !literal.is_empty() {
        pieces.push(PatternPiece::Literal(literal));
    }
    Ok(pieces)
}

/// The name and the class of `name`, `name:int` or `name*`.
fn read_capture(inner: &str) -> Result<(&str, ByteClass), PatternError> {
    let (name, class) = match (inner.strip_suffix('*'), inner.split_once(':')) {
        (Some(name), _) => (name, ByteClass::Rest),
        (None, Some((name, "int"))) => (name, ByteClass::Int),
        (None, Some((name, other))) if is_name(name) => {
            return Err(PatternError::Type(name.to_owned(), other.to_owned()));
        }
        _ => (inner, ByteClass::Segment),
    };
    if is_name(name) { Ok((name, class)) } else { Err(PatternError::Name(inner.to_owned())) }
}

pub(crate) fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

/// Longest tag that a client may name, and longest literal text of a rule's tag, in bytes.
///
/// The tag that a template renders from a long key can be longer. It is rendered and hashed whole
/// nevertheless, so that no item loses a tag; a cascade that renders the same text invalidates it.
pub const TAG_BYTES_MAX: usize = 200;

/// A tag such as `user:{user}`, over the captures of one pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagTemplate {
    text: Box<str>,
    parts: Box<[TemplatePart]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Literal(Box<[u8]>),
    /// The place of a capture in the pattern.
    Capture(u8),
}

impl TagTemplate {
    /// Reads a tag whose captures are those of `pattern`; without a pattern it may have no captures.
    pub fn parse(text: &str, pattern: Option<&Pattern>) -> Result<Self, PatternError> {
        let mut parts = Vec::new();
        let mut literal_bytes = 0;
        for piece in pieces(text)? {
            parts.push(match piece {
                PatternPiece::Literal(literal) => {
                    literal_bytes += literal.len();
                    TemplatePart::Literal(literal.into())
                }
                PatternPiece::Braces(inner) => TemplatePart::Capture(find(inner, pattern)?),
            });
        }
        if parts.is_empty() {
            return Err(PatternError::Empty);
        }
        if literal_bytes > TAG_BYTES_MAX {
            return Err(PatternError::LongTag(literal_bytes));
        }
        Ok(Self { text: text.into(), parts: parts.into() })
    }

    /// The tag as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Appends the tag's name to `out`. `captures` must come from the template's own pattern.
    pub fn render(&self, captures: &Captures<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            out.extend_from_slice(match part {
                TemplatePart::Literal(literal) => literal,
                TemplatePart::Capture(index) => captures.get(usize::from(*index)).unwrap_or_default(),
            });
        }
    }

    /// The tag's name for a key. `captures`: as for [`TagTemplate::render`].
    pub fn name(&self, captures: &Captures<'_>) -> String {
        let mut name = Vec::new();
        self.render(captures, &mut name);
        String::from_utf8_lossy(&name).into_owned()
    }

    /// The tag's name if it uses no captures.
    pub fn constant(&self) -> Option<&[u8]> {
        match &self.parts[..] {
            [TemplatePart::Literal(literal)] => Some(literal),
            _ => None,
        }
    }
}

/// The place of a capture in the pattern.
fn find(inner: &str, pattern: Option<&Pattern>) -> Result<u8, PatternError> {
    let names: Vec<&str> = pattern.into_iter().flat_map(Pattern::names).collect();
    if let Some(index) = names.iter().position(|name| *name == inner) {
        return Ok(index as u8);
    }
    let name = inner.strip_suffix('*').unwrap_or_else(|| inner.split(':').next().unwrap_or(inner));
    if !is_name(name) {
        Err(PatternError::Name(inner.to_owned()))
    } else if name != inner {
        Err(PatternError::Typed(inner.to_owned(), name.to_owned()))
    } else {
        let captures = names.into_iter().map(str::to_owned).collect();
        Err(PatternError::Unbound { name: name.to_owned(), captures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(pattern: &str, key: &str) -> Option<Vec<String>> {
        let captures = Pattern::parse(pattern).unwrap().match_key(key.as_bytes())?;
        Some(captures.iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect())
    }

    #[test]
    fn captures_hold_the_bytes_between_the_literals() {
        for (pattern, key, expected) in [
            ("page:{id}", "page:42", Some(vec!["42"])),
            ("page:{id}", "page:", None),
            ("page:{id}", "page:4:2", None),
            ("page:{id}", "pages:42", None),
            ("page:{id:int}", "page:42", Some(vec!["42"])),
            ("page:{id:int}", "page:4a", None),
            ("page:{path*}", "page:a:b", Some(vec!["a:b"])),
            ("page:{path*}", "page:", None),
            ("last:{user}:{product}", "last:7:9", Some(vec!["7", "9"])),
            ("last:{user}:{product}", "last:7:", None),
            ("last:{user}:{product}", "last::9", None),
            ("user-{id}-x", "user-12-x", Some(vec!["12"])),
            ("user-{id}-x", "user--x-x", Some(vec!["-x"])),
            ("user-{id}-x", "user---x", Some(vec!["-"])),
            ("user-{id}-x", "user-12-x-x", None),
            ("{a}-{n:int}", "x-1", Some(vec!["x", "1"])),
            ("{a}-{n:int}", "x-y-1", None),
            ("{n:int}0", "100", None),
            ("{n:int}0", "10", Some(vec!["1"])),
            ("{a}:{rest*}", "x:y:z", Some(vec!["x", "y:z"])),
            ("config", "config", Some(vec![])),
            ("config", "config1", None),
            ("{{{id}}}:x", "{7}:x", Some(vec!["7"])),
        ] {
            let expected = expected.map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(captured(pattern, key), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn a_key_above_the_limit_matches_nothing() {
        let pattern = Pattern::parse("a{rest*}").unwrap();
        assert!(pattern.match_key(&[b'a'; KEY_MAX]).is_some());
        assert!(pattern.match_key(&[b'a'; KEY_MAX + 1]).is_none());
    }

    #[test]
    fn an_invalid_pattern_is_explained() {
        let nine: String = (0..9).fold(String::new(), |text, n| text + &format!("{{c{n}}}:"));
        for (text, expected) in [
            ("", "is empty"),
            ("a{b", "has a { that no } ends; write {{ for a brace"),
            ("a}b", "has a } that no { begins; write }} for a brace"),
            ("a{}", "{}: a name has letters, digits and _, and begins with no digit"),
            ("a{1b}", "{1b}: a name has letters, digits and _, and begins with no digit"),
            ("a{b:str}", "{b:str}: unknown type; write {b}, {b:int} or {b*}"),
            ("{a}:{a}", "{a} is there twice; each capture needs its own name"),
            ("{a}{b}", "{a} and {b} touch; put a literal between them"),
            ("{a*}:", "{a*} takes the rest of the key, so nothing may follow it"),
            ("{a*}{b}", "{a*} takes the rest of the key, so nothing may follow it"),
            ("a b", "has a blank or control character, which no pattern may have"),
            (&nine, "has 9 captures; at most 8"),
            (&"x".repeat(251), "matches keys of 251 bytes or more only; keys have at most 250"),
        ] {
            assert_eq!(Pattern::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_tag_is_rendered_from_the_captures() {
        let pattern = Pattern::parse("last:{user}:{product}").unwrap();
        let captures = pattern.match_key(b"last:7:9").unwrap();
        for (template, tag) in
            [("user:{user}", "user:7"), ("{product}-{user}", "9-7"), ("all", "all"), ("{{{user}}}", "{7}")]
        {
            let template = TagTemplate::parse(template, Some(&pattern)).unwrap();
            let mut out = Vec::new();
            template.render(&captures, &mut out);
            assert_eq!(out, tag.as_bytes());
            assert_eq!(template.constant().is_some(), tag == "all");
        }
    }

    #[test]
    fn a_long_rendering_is_whole() {
        let pattern = Pattern::parse("{a}").unwrap();
        let template = TagTemplate::parse("x{a}{a}", Some(&pattern)).unwrap();
        let mut out = Vec::new();
        template.render(&pattern.match_key(&[b'k'; 250]).unwrap(), &mut out);
        assert_eq!(out.len(), 501);
    }

    #[test]
    fn an_invalid_tag_is_explained() {
        let pattern = Pattern::parse("last:{user}:{product}").unwrap();
        for (text, expected) in [
            ("", "is empty"),
            ("a b", "has a blank or control character, which no pattern may have"),
            ("{}", "{}: a name has letters, digits and _, and begins with no digit"),
            ("{id}", "{id}: the pattern has no such capture; it has {user}, {product}"),
            ("{user:int}", "{user:int}: in a tag a capture is its name only, {user}"),
            ("{user*}", "{user*}: in a tag a capture is its name only, {user}"),
            (&"x".repeat(201), "has 201 bytes beside its captures; a tag has at most 200"),
        ] {
            assert_eq!(TagTemplate::parse(text, Some(&pattern)).unwrap_err().to_string(), expected, "{text}");
        }
        let error = TagTemplate::parse("{id}", None).unwrap_err();
        assert_eq!(error.to_string(), "{id}: the pattern has no such capture; it has none");
    }
}
