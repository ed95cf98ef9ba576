//! Words and signs of Luau.
//!
//! An interpolated string is several tokens: its first part ([`Kind::Opens`]), the tokens of an expression, the part up to
//! the next ([`Kind::Between`]), and the last ([`Kind::Closes`]).
//!
//! # Invariants
//! * Reading never fails: what no token begins with is listed in [`Tokens::strange`] and left out.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or a keyword.
    Name,
    Number,
    /// A string, quotes included.
    Text,
    /// The part of an interpolated string before its first `{`.
    Opens,
    /// The part between `}` and `{`.
    Between,
    /// The part after the last `}`.
    Closes,
    /// An operator or a bracket.
    Sign,
    /// Behind the last token.
    End,
}

/// A word or a sign.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'s> {
    pub(crate) kind: Kind,
    pub(crate) text: &'s str,
    /// From 1.
    pub(crate) line: usize,
}

/// All tokens of a source.
#[derive(Debug, Default)]
pub(crate) struct Tokens<'s> {
    /// Ends with [`Kind::End`].
    pub(crate) list: Vec<Token<'s>>,
    /// Characters outside of strings and comments that no token begins with, with their lines.
    pub(crate) strange: Vec<(usize, char)>,
}

/// Operators of several characters, the longest first.
const LONG_SIGNS: [&str; 18] = [
    "...", "..=", "//=", "==", "~=", "<=", ">=", "..", "//", "::", "->", "+=", "-=", "*=", "/=", "%=", "^=",
    "!=",
];

/// Reads a source.
pub(crate) fn tokens(text: &str) -> Tokens<'_> {
    let mut lexer = Lexer { text, at: 0, line: 1, braces: Vec::new(), found: Tokens::default() };
    lexer.run();
    lexer.found
}

struct Lexer<'s> {
    text: &'s str,
    at: usize,
    line: usize,
    /// Of each interpolated string that is open: braces that are open in its expression.
    braces: Vec<usize>,
    found: Tokens<'s>,
}

impl Lexer<'_> {
    fn run(&mut self) {
        while let Some(first) = self.text[self.at..].chars().next() {
            let rest = &self.text[self.at..];
            match first {
                '\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                ' ' | '\t' | '\r' | '\x0b' | '\x0c' => self.at += 1,
                '-' if rest.starts_with("--") => self.comment(),
                'a'..='z' | 'A'..='Z' | '_' => {
                    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    let bytes = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                    self.push(Kind::Name, bytes);
                }
                '0'..='9' => self.number(),
                '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => self.number(),
                '"' | '\'' => self.quoted(first),
                '[' => match long(rest) {
                    Some(bytes) => self.push(Kind::Text, bytes),
                    None => self.push(Kind::Sign, 1),
                },
                '`' => self.interpolated(Kind::Opens),
                '}' if self.braces.last() == Some(&0) => {
                    self.braces.pop();
                    self.interpolated(Kind::Between);
                }
                _ => self.sign(first),
            }
        }
        self.push(Kind::End, 0);
    }

    fn push(&mut self, kind: Kind, bytes: usize) {
        let text = &self.text[self.at..self.at + bytes];
        self.found.list.push(Token { kind, text, line: self.line });
        self.line += text.matches('\n').count();
        self.at += bytes;
    }

    fn comment(&mut self) {
        let rest = &self.text[self.at..];
        let bytes = long(&rest[2..]).map(|bytes| bytes + 2);
        let bytes = bytes.unwrap_or_else(|| rest.find('\n').unwrap_or(rest.len()));
        self.line += rest[..bytes].matches('\n').count();
        self.at += bytes;
    }

    fn number(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        let is_hex = rest.len() > 1 && rest[0] == b'0' && matches!(rest[1], b'x' | b'X');
        let mut bytes = 0;
        while bytes < rest.len() {
            let is_sign = matches!(rest[bytes], b'+' | b'-')
                && !is_hex
                && bytes > 0
                && matches!(rest[bytes - 1], b'e' | b'E');
            if !is_sign && !rest[bytes].is_ascii_alphanumeric() && !matches!(rest[bytes], b'_' | b'.') {
                break;
            }
            bytes += 1;
        }
        self.push(Kind::Number, bytes);
    }

    fn quoted(&mut self, quote: char) {
        let rest = &self.text.as_bytes()[self.at..];
        let mut bytes = 1;
        while bytes < rest.len() {
            match rest[bytes] {
                b'\\' => bytes = escape_end(rest, bytes),
                byte if byte == quote as u8 => {
                    bytes += 1;
                    break;
                }
                b'\n' => break,
                _ => bytes += 1,
            }
        }
        self.push(Kind::Text, bytes.min(rest.len()));
    }

    /// A part of an interpolated string; its first byte is that which begins the part.
    fn interpolated(&mut self, kind: Kind) {
        let rest = &self.text.as_bytes()[self.at..];
        let mut bytes = 1;
        let mut ends = true;
        while bytes < rest.len() {
            match rest[bytes] {
                b'\\' => bytes = escape_end(rest, bytes),
                b'`' => {
                    bytes += 1;
                    break;
                }
                b'{' => {
                    bytes += 1;
                    ends = false;
                    break;
                }
                b'\n' => break,
                _ => bytes += 1,
            }
        }
        let kind = match (kind, ends) {
            (Kind::Opens, true) => Kind::Text,
            (_, true) => Kind::Closes,
            (kind, false) => kind,
        };
        self.push(kind, bytes.min(rest.len()));
        if !ends {
            self.braces.push(0);
        }
    }

    fn sign(&mut self, first: char) {
        let rest = &self.text[self.at..];
        match first {
            '{' => self.braces.last_mut().into_iter().for_each(|open| *open += 1),
            '}' => self.braces.last_mut().into_iter().for_each(|open| *open -= 1),
            _ => {}
        }
        if let Some(sign) = LONG_SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            self.push(Kind::Sign, sign.len());
        } else if "+-*/%^#<>=(){}[];:,.?|&@".contains(first) {
            self.push(Kind::Sign, 1);
        } else {
            self.found.strange.push((self.line, first));
            self.at += first.len_utf8();
        }
    }
}

/// The place behind an escape that begins at `at`: `\z` takes all blanks behind it.
fn escape_end(text: &[u8], at: usize) -> usize {
    match text.get(at + 1) {
        Some(b'z') => {
            let blanks = text[at + 2..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            at + 2 + blanks
        }
        // An escaped CR LF is one line end.
        Some(b'\r') if text.get(at + 2) == Some(&b'\n') => at + 3,
        Some(_) => at + 2,
        None => at + 1,
    }
}

/// The length of `[[...]]`, `[=[...]=]` and so on at the beginning of a text; None: there is none. An open one goes to the end.
fn long(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('[')?;
    let level = inner.len() - inner.trim_start_matches('=').len();
    inner[level..].strip_prefix('[')?;
    let close = format!("]{}]", "=".repeat(level));
    let from = level + 2;
    Some(text[from..].find(&close).map_or(text.len(), |found| from + found + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<&str> {
        tokens(text).list.iter().map(|token| token.text).collect()
    }

    #[test]
    fn strings_comments_and_numbers_are_one_token_or_none() {
        assert_eq!(read("a--[==[ ]] \n]==]b"), ["a", "b", ""]);
        assert_eq!(read("x=[=[ ]] ]=]..'a\\'b'"), ["x", "=", "[=[ ]] ]=]", "..", "'a\\'b'", ""]);
        assert_eq!(read("1e-5+0xE-1 .5 1_0"), ["1e-5", "+", "0xE", "-", "1", ".5", "1_0", ""]);
        assert_eq!(read("'a\\z\n  b'\nc"), ["'a\\z\n  b'", "c", ""]);
        assert_eq!(tokens("'a\\z\n  b'\nc").list[1].line, 3);
    }

    #[test]
    fn an_interpolated_string_is_its_parts() {
        assert_eq!(
            read("`a{ {x=1}.x }b{`c{y}`}`"),
            ["`a{", "{", "x", "=", "1", "}", ".", "x", "}b{", "`c{", "y", "}`", "}`", ""]
        );
        assert_eq!(read("`a\\{b`"), ["`a\\{b`", ""]);
    }

    #[test]
    fn what_is_cut_short_ends_with_the_text() {
        for text in ["'abc", "'a\\", "`a{", "`a\\", "[[x", "--[[x", "'a\\z ", "\u{e9}"] {
            assert_eq!(tokens(text).list.last().expect("the end").kind, Kind::End, "{text}");
        }
        assert_eq!(tokens("a\u{a0}b '\u{a0}' --\u{a0}").strange, [(1, '\u{a0}')]);
    }
}
