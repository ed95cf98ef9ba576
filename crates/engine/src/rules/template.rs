//! Tags of a rule: names that are rendered from the captures of its pattern.

use crate::rules::pattern::{Captures, Pattern, PatternError, PatternPiece, is_name, pieces};

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
