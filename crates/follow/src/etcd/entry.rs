//! The entries that a node writes for the others: the bumps of one batch, as text.
//!
//! ```text
//! cattlegrid 1 00c0ffee00c0ffee 17 barrier
//! hard user:1
//! each hard user:1
//! soft user:2 :1:
//! gradual 60 news
//! flush 300
//! ```
//!
//! The first line has the format's version, the instance of the node that wrote it, the batch's number, and
//! whether a client waits for all nodes.
//!
//! Entries have names instead of hashes, because each node hashes with a seed of its own. The prefix that
//! clients put before a name follows it; `each` means all prefixes. `%`, and bytes that are not visible
//! ASCII, are written as `%0A` is.

use std::fmt::Write as _;

/// Longest line of a bump, in bytes. A longer one is written as `all`.
pub const TAG_LINE_MAX: usize = 4096;

/// Most characters of a reason.
const REASON_CHARS_MAX: usize = 200;

/// The version of the format. An entry of a later version is obeyed as a bump of everything.
const VERSION: u32 = 1;

/// The first word of all entries.
const MAGIC: &str = "cattlegrid";

/// Longest period of a rolling flush or a gradual purge, in seconds.
const SECONDS_MAX: u64 = 24 * 60 * 60;

/// A bump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bump {
    /// A bump of a tag.
    Tag {
        /// Whether the bump is soft: the old value is served while one client computes.
        is_soft: bool,
        /// The prefix that clients put before it; empty: none.
        prefix: Vec<u8>,
        /// The tag's name.
        name: Vec<u8>,
    },
    /// A bump of a tag behind every prefix that a node knows, and without prefix.
    Each {
        /// Whether the bump is soft.
        is_soft: bool,
        /// The tag's name.
        name: Vec<u8>,
    },
    /// A bump of a tag, softly, item by item over a period.
    Gradual {
        /// The period in seconds, 1 to 86,400.
        seconds: u64,
        /// The prefix that clients put before it; empty: none.
        prefix: Vec<u8>,
        /// The tag's name.
        name: Vec<u8>,
    },
    /// A rolling flush of everything.
    Flush {
        /// The period in seconds, 1 to 86,400.
        seconds: u64,
    },
    /// A bump of all tags.
    All {
        /// Why, for the log of the nodes; empty: a node had no room for more.
        reason: String,
    },
    /// No bump: a client waits for all nodes.
    Nothing,
}

/// A batch of a node's bumps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchEntry {
    /// The instance of the node that wrote the entry. A node has another one after each start.
    pub instance: u64,
    /// The batch's number.
    pub number: u64,
    /// Whether a client waits until all nodes have obeyed. Then they write their records at once.
    pub has_barrier: bool,
    /// The lines of its bumps, each as [`Bump::line`] writes it.
    pub lines: Vec<Box<[u8]>>,
}

/// The contents of a value under `PREFIX/bump/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryValue {
    /// An entry.
    Entry(BatchEntry),
    /// An entry of a later format: it bumps everything.
    Later {
        /// The format's version.
        version: u32,
    },
    /// A value that no node has written.
    Foreign,
}

impl Bump {
    /// The line of the bump in an entry.
    pub fn line(&self) -> Box<[u8]> {
        let (mut line, none) = (String::new(), Vec::new());
        let (prefix, name) = match self {
            Self::Tag { is_soft, prefix, name } => {
                line.push_str(if *is_soft { "soft " } else { "hard " });
                (prefix, name)
            }
            Self::Each { is_soft, name } => {
                line.push_str(if *is_soft { "each soft " } else { "each hard " });
                (&none, name)
            }
            Self::Gradual { seconds, prefix, name } => {
                let _infallible = write!(line, "gradual {seconds} ");
                (prefix, name)
            }
            Self::Flush { seconds } => return format!("flush {seconds}").into_bytes().into(),
            Self::All { reason } => {
                line.push_str("all");
                if !reason.is_empty() {
                    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
                    line.push(' ');
                    encode(reason.as_bytes(), &mut line);
                }
                return line.into_bytes().into();
            }
            Self::Nothing => return b"nothing".as_slice().into(),
        };
        encode(name, &mut line);
        if !prefix.is_empty() {
            line.push(' ');
            encode(prefix, &mut line);
        }
        // This release writes no such line, so it need not read one.
        if line.len() > TAG_LINE_MAX {
            Self::All { reason: String::new() }.line()
        } else {
            line.into_bytes().into()
        }
    }

    /// Reads a line. `None`: the line is of another release, or broken.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let words: Vec<&str> = line.split(' ').collect();
        let named = |name: &str, prefix: Option<&&str>| {
            let name = decode(name).filter(|name| !name.is_empty())?;
            Some((name, prefix.map_or(Some(Vec::new()), |prefix| decode(prefix))?))
        };
        let seconds = |text: &str| text.parse().ok().filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
        match *words.as_slice() {
            [kind @ ("hard" | "soft"), name, ref rest @ ..] if rest.len() < 2 => {
                let (name, prefix) = named(name, rest.first())?;
                Some(Self::Tag { is_soft: kind == "soft", prefix, name })
            }
            ["each", kind @ ("hard" | "soft"), name] => {
                Some(Self::Each { is_soft: kind == "soft", name: named(name, None)?.0 })
            }
            ["gradual", period, name, ref rest @ ..] if rest.len() < 2 => {
                let (name, prefix) = named(name, rest.first())?;
                Some(Self::Gradual { seconds: seconds(period)?, prefix, name })
            }
            ["flush", period] => Some(Self::Flush { seconds: seconds(period)? }),
            ["all"] => Some(Self::All { reason: String::new() }),
            ["all", reason] => {
                Some(Self::All { reason: String::from_utf8_lossy(&decode(reason)?).into_owned() })
            }
            ["nothing"] => Some(Self::Nothing),
            _ => None,
        }
    }
}

impl BatchEntry {
    /// The value that is written.
    pub fn text(&self) -> Vec<u8> {
        let barrier = if self.has_barrier { " barrier" } else { "" };
        let mut text =
            format!("{MAGIC} {VERSION} {:016x} {}{barrier}", self.instance, self.number).into_bytes();
        for line in &self.lines {
            text.push(b'\n');
            text.extend_from_slice(line);
        }
        text
    }
}

impl EntryValue {
    /// Reads a value.
    pub fn parse(value: &[u8]) -> Self {
        let mut lines = value.split(|byte| *byte == b'\n');
        let first = lines.next().and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
        let words: Vec<&str> = first.split(' ').collect();
        let [MAGIC, version, ref rest @ ..] = *words.as_slice() else { return Self::Foreign };
        match (version.parse(), rest) {
            (Ok(VERSION), [instance, number, more @ ..]) => {
                match (u64::from_str_radix(instance, 16), number.parse()) {
                    (Ok(instance), Ok(number)) => Self::Entry(BatchEntry {
                        instance,
                        number,
                        has_barrier: more.contains(&"barrier"),
                        lines: lines.map(Into::into).collect(),
                    }),
                    _ => Self::Foreign,
                }
            }
            (Ok(version), _) if version > VERSION => Self::Later { version },
            _ => Self::Foreign,
        }
    }
}

fn encode(bytes: &[u8], line: &mut String) {
    for byte in bytes {
        match byte {
            b'%' | 0..=b' ' | 0x7f.. => {
                let _infallible = write!(line, "%{byte:02X}");
            }
            _ => line.push(char::from(*byte)),
        }
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok())?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bumps() -> Vec<Bump> {
        let every: Vec<u8> = (0..=255).collect();
        vec![
            Bump::Tag { is_soft: false, prefix: Vec::new(), name: b"user:1".to_vec() },
            Bump::Tag { is_soft: true, prefix: b":1:".to_vec(), name: every.clone() },
            Bump::Tag { is_soft: false, prefix: every, name: b"%0A".to_vec() },
            Bump::Each { is_soft: false, name: b"user:1".to_vec() },
            Bump::Each { is_soft: true, name: b"a b".to_vec() },
            Bump::Gradual { seconds: 60, prefix: b"p".to_vec(), name: b"a b\nc".to_vec() },
            Bump::Flush { seconds: 86_400 },
            Bump::All { reason: String::new() },
            Bump::All { reason: "shop: the log is followed, from now on".to_owned() },
            Bump::Nothing,
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for bump in bumps() {
            assert_eq!(Bump::parse(&bump.line()), Some(bump));
        }
        for has_barrier in [false, true] {
            let entry = BatchEntry {
                instance: 0x0c0f_fee0,
                number: 17,
                has_barrier,
                lines: bumps().iter().map(Bump::line).collect(),
            };
            assert_eq!(EntryValue::parse(&entry.text()), EntryValue::Entry(entry));
        }
        assert_eq!(bumps()[0].line().as_ref(), b"hard user:1");
        assert_eq!(bumps()[4].line().as_ref(), b"each soft a%20b");
        assert_eq!(bumps()[5].line().as_ref(), b"gradual 60 a%20b%0Ac p");
    }

    #[test]
    fn what_is_too_long_is_everything() {
        let name = vec![b'\n'; TAG_LINE_MAX / 3 + 1];
        assert_eq!(Bump::Tag { is_soft: false, prefix: Vec::new(), name }.line().as_ref(), b"all");
    }

    #[test]
    fn other_releases_and_other_projects() {
        assert_eq!(EntryValue::parse(b"cattlegrid 2 whatever"), EntryValue::Later { version: 2 });
        for foreign in [
            &b""[..],
            b"{\"v\":1}",
            b"cattlegrid",
            b"cattlegrid 1",
            b"cattlegrid 0 1 2",
            b"\xff\xfe",
            b"cattlegrid 1 x 2",
        ] {
            assert_eq!(EntryValue::parse(foreign), EntryValue::Foreign, "{foreign:?}");
        }
        let lines: [&[u8]; 11] = [
            b"",
            b"hard",
            b"hard ",
            b"hard a b c",
            b"rock a",
            b"flush",
            b"flush 0",
            b"flush 86401",
            b"gradual x a",
            b"hard %4",
            b"\xff",
        ];
        for line in lines {
            assert_eq!(Bump::parse(line), None, "{line:?}");
        }
        // A word more in the first line is for later releases of this format.
        let EntryValue::Entry(entry) = EntryValue::parse(b"cattlegrid 1 1 2 other barrier") else {
            panic!("an entry")
        };
        assert!(entry.has_barrier);
    }
}
