//! Whether an earlier pattern matches every key of a later one.
//!
//! The earlier pattern is matched against the later one as if that were a key in which a capture stands for
//! unknown bytes. Where the result depends on those bytes the answer is no: a yes is certain, a no is not.

use crate::rules::index::LockForms;
use crate::rules::pattern::{ByteClass, Capture, Pattern};

/// A byte of the later pattern, or one of its captures.
#[derive(Clone, Copy)]
enum Token<'p> {
    Byte(u8),
    Capture(&'p Capture),
}

impl Pattern {
    /// Whether every key that could have a rule with the pattern `later` has a rule with this pattern, if
    /// that comes first. True is certain; false may mean that it could not be decided.
    pub fn covers(&self, later: &Self) -> bool {
        if !LockForms::of_pattern(self).include(LockForms::of_pattern(later)) {
            return false;
        }
        // A capture of `later` where this pattern has a literal may hold other bytes.
        if !later.suffix().ends_with(self.suffix()) {
            return false;
        }
        let Some(literal) = later.prefix.strip_prefix(&*self.prefix) else { return false };
        let mut tokens: Vec<Token<'_>> = literal.iter().copied().map(Token::Byte).collect();
        for capture in &later.captures {
            tokens.push(Token::Capture(capture));
            tokens.extend(capture.then.iter().copied().map(Token::Byte));
        }
        let mut rest = &tokens[..];
        for capture in &self.captures {
            match after(capture, rest) {
                Some(left) => rest = left,
                None => return false,
            }
        }
        rest.is_empty()
    }
}

/// Whether the tokens begin with `literal`; None: it depends on what a capture holds.
fn begins_with(tokens: &[Token<'_>], literal: &[u8]) -> Option<bool> {
    for (index, byte) in literal.iter().enumerate() {
        match tokens.get(index) {
            Some(Token::Byte(own)) if own == byte => {}
            Some(Token::Capture(capture)) if capture.class.has(*byte) => return None,
            _ => return Some(false),
        }
    }
    Some(true)
}

/// The tokens behind `capture` and its literal; None: it does not match, or that is not certain.
fn after<'t, 'p>(capture: &Capture, tokens: &'t [Token<'p>]) -> Option<&'t [Token<'p>]> {
    if tokens.is_empty() {
        return None;
    }
    for (index, token) in tokens.iter().enumerate() {
        if index > 0 && !capture.then.is_empty() && begins_with(&tokens[index..], &capture.then)? {
            return Some(&tokens[index + capture.then.len()..]);
        }
        let fits = match token {
            Token::Byte(byte) => capture.class.has(*byte),
            Token::Capture(own) => {
                // The literal must not begin among the bytes of `own`. It does not if they never contain its
                // first byte, or if `own` ends at the same literal and was searched from the same place on.
                let certain = match capture.then.first() {
                    None => true,
                    Some(first) => !own.class.has(*first) || (index == 0 && own.then == capture.then),
                };
                certain && capture.class.includes(own.class)
            }
        };
        if !fits {
            return None;
        }
    }
    (capture.then.is_empty() || capture.class == ByteClass::Rest).then_some(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_later_ones() {
        for (earlier, later, covers) in [
            ("page:{id}", "page:{id}", true),
            ("page:{id}", "page:{other}", true),
            ("page:{id}", "page:{id:int}", true),
            ("page:{id:int}", "page:{id}", false),
            ("{x*}", "page:{id}", true),
            ("{x*}", "a", true),
            ("page:{x*}", "page:{id}:{b}", true),
            ("page:{x*}", "page:{id}-{rest*}", true),
            ("page:{x*}", "page{id}", false),
            ("page:{id}", "page:new", true),
            ("page:{id}", "page:new:1", false),
            ("page:{id}", "page:{id}-x", true),
            ("page:{id:int}", "page:{id:int}-x", false),
            ("page:{id}", "page:{x*}", false),
            ("{a}:{b}", "user:{id}", true),
            ("{a}:{b}", "user:{id}:x", false),
            ("{a}:{b*}", "user:{id}:x", true),
            ("{a}-{b}", "{a}-{b}-{c}", true),
            ("{a}-{n:int}", "{a}-{b}-1", false),
            ("{a}-x", "{a:int}-x", true),
            ("a{x}", "a", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("{x*}", "lock:{id}", false),
            ("lock:{x*}", "lock:{id}", true),
            ("{x*}", "{id}_lock", false),
        ] {
            let parse = |text| Pattern::parse(text).unwrap();
            assert_eq!(parse(earlier).covers(&parse(later)), covers, "{earlier} before {later}");
        }
    }
}
