//! Keys and tags as text.
//!
//! Names and ids are percent-encoded, upper case: all bytes that are not visible ASCII, the bytes of the
//! separator, `%`, `,` and `|`. The separator therefore stands between parts only, and different parts give
//! different keys.

use std::fmt;
use std::fmt::Write as _;

use percent_encoding::percent_encode_byte;

use super::evidence::TextHash;
use crate::error::{Error, KeyError};
use crate::key::{KEY_MAX, Key};

/// Namespaces of a key: one of the eight tags of an item is the master's.
pub(super) const NAMESPACES_MAX: usize = 7;
/// Longest tag of a server.
const TAG_MAX: usize = 200;
/// A number of 64 bits.
const NUMBER_DIGITS: usize = 16;
const COUNTER_MARK: char = '|';

/// A key made by a [`Namespacer`](crate::Namespacer). It is good for one read or write, and for the write
/// after a read that found nothing: later, make it again. A value that is stored under a key made before an
/// update is not seen after it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamespacedKey {
    text: String,
    tags: Vec<String>,
}

impl NamespacedKey {
    /// The key as servers know it: at most 250 bytes of ASCII.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Key for NamespacedKey {
    fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }
}

impl fmt::Display for NamespacedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl AsRef<str> for NamespacedKey {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// How names become text.
#[derive(Debug, Clone)]
pub(super) struct Naming {
    pub(super) prefix: String,
    pub(super) separator: String,
    pub(super) tags: bool,
    /// Keys begin with a master number.
    pub(super) master: bool,
}

/// A namespace, such as `userId:1234`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) text: String,
    pub(super) hash: TextHash,
}

/// A key without its numbers.
#[derive(Debug, Clone)]
pub(super) struct LogicalKey {
    name: Option<String>,
    pub(super) namespaces: Vec<Namespace>,
    /// Decides when the key changes in a rolling flush.
    pub(super) hash: TextHash,
}

impl Naming {
    /// Key of the record.
    pub(super) fn record_key(&self) -> String {
        format!("{}record", self.prefix)
    }

    /// Key of a namespace's own number.
    pub(super) fn counter_key(&self, namespace: &Namespace) -> String {
        format!("{}counter{COUNTER_MARK}{}", self.prefix, namespace.text)
    }

    /// The tag of a namespace.
    pub(super) fn tag(&self, namespace: &Namespace) -> String {
        format!("{}{}", self.prefix, namespace.text)
    }

    /// The tag of all keys of a window.
    pub(super) fn master_tag(&self, master: u64) -> String {
        format!("{}{master:016x}", self.prefix)
    }

    /// A namespace. An error: a part is empty, or it is too long for its own key or tag.
    pub(super) fn namespace(&self, name: &str, id: &impl fmt::Display) -> Result<Namespace, Error> {
        let id = id.to_string();
        if name.is_empty() || id.is_empty() {
            return Err(Error::Usage(format!("namespace {name:?} with the id {id:?}: neither may be empty")));
        }
        let mut text = self.encoded(name);
        text.push_str(&self.separator);
        text.push_str(&self.encoded(&id));
        let namespace = Namespace { hash: TextHash::new(&text), text };
        let long = self.counter_key(&namespace).len();
        if long > KEY_MAX {
            return Err(Error::Key(KeyError::Long(long)));
        }
        let long = self.tag(&namespace).len();
        if self.tags && long > TAG_MAX {
            let text = namespace.text;
            return Err(Error::Usage(format!(
                "{text}: a tag has {long} bytes, at most {TAG_MAX} are possible"
            )));
        }
        Ok(namespace)
    }

    /// A key of one namespace only.
    pub(super) fn single(&self, namespace: Namespace) -> Result<LogicalKey, Error> {
        self.logical(None, vec![namespace])
    }

    /// A key with a name and its namespaces.
    pub(super) fn named<D: fmt::Display>(
        &self,
        name: &str,
        namespaces: &[(&str, D)],
    ) -> Result<LogicalKey, Error> {
        if name.is_empty() {
            return Err(Error::Usage("the name of a key is empty".to_owned()));
        }
        let parts = namespaces.iter().map(|(name, id)| self.namespace(name, id)).collect::<Result<_, _>>()?;
        self.logical(Some(self.encoded(name)), parts)
    }

    /// An error: too many namespaces, none, or a key that can become too long.
    fn logical(&self, name: Option<String>, namespaces: Vec<Namespace>) -> Result<LogicalKey, Error> {
        let count = namespaces.len();
        if !(1..=NAMESPACES_MAX).contains(&count) {
            return Err(Error::Usage(format!(
                "a key of {count} namespaces: 1 to {NAMESPACES_MAX} are possible"
            )));
        }
        let mut logical = LogicalKey { name, namespaces, hash: TextHash::new("") };
        let bare = self.text(&logical, None, &[]);
        logical.hash = TextHash::new(&bare);
        // With all numbers that it can have: a key must not become too long by an update.
        let counters = if self.tags { 0 } else { count * (NUMBER_DIGITS + COUNTER_MARK.len_utf8()) };
        let master = if self.master { NUMBER_DIGITS + self.separator.len() } else { 0 };
        match bare.len() + counters + master {
            ..=KEY_MAX => Ok(logical),
            long => Err(Error::Key(KeyError::Long(long))),
        }
    }

    /// The key with its numbers. `counters` are those of the namespaces in their order, or none at all.
    pub(super) fn key(
        &self,
        logical: &LogicalKey,
        master: Option<u64>,
        counters: &[Option<u64>],
    ) -> NamespacedKey {
        let mut tags = Vec::new();
        if self.tags {
            for namespace in &logical.namespaces {
                let tag = self.tag(namespace);
                if !tags.contains(&tag) {
                    tags.push(tag);
                }
            }
            tags.extend(master.map(|master| self.master_tag(master)));
        }
        NamespacedKey { text: self.text(logical, master, counters), tags }
    }

    fn text(&self, logical: &LogicalKey, master: Option<u64>, counters: &[Option<u64>]) -> String {
        let mut text = self.prefix.clone();
        let mut parts = 0;
        let mut part = |text: &mut String, part: &str| {
            if parts > 0 {
                text.push_str(&self.separator);
            }
            parts += 1;
            text.push_str(part);
        };
        if let Some(master) = master {
            part(&mut text, &format!("{master:016x}"));
        }
        if let Some(name) = &logical.name {
            part(&mut text, name);
        }
        for (place, namespace) in logical.namespaces.iter().enumerate() {
            part(&mut text, &namespace.text);
            if let Some(Some(counter)) = counters.get(place) {
                text.push(COUNTER_MARK);
                write!(text, "{counter:016x}").unwrap_or_default();
            }
        }
        text
    }

    fn encoded(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for byte in text.bytes() {
            let safe = byte.is_ascii_graphic() && !matches!(byte, b'%' | b',' | b'|');
            if safe && !self.separator.as_bytes().contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(percent_encode_byte(byte));
            }
        }
        out
    }
}

/// A namespace's own number as it is stored.
pub(super) fn number(data: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(data).ok().filter(|text| text.len() == NUMBER_DIGITS)?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(tags: bool) -> Naming {
        Naming { prefix: "___".to_owned(), separator: ":".to_owned(), tags, master: true }
    }

    fn text(name: &str, namespaces: &[(&str, &str)]) -> String {
        let naming = naming(false);
        let logical = naming.named(name, namespaces).unwrap();
        naming.key(&logical, Some(0xab), &[]).text
    }

    #[test]
    fn keys_are_the_documented_ones() {
        let with = naming(false);
        let logical = with.named("last", &[("userId", "12543"), ("prodId", "54929873")]).unwrap();
        let key = with.key(&logical, Some(0xab), &[Some(1), None]);
        let expected = "___00000000000000ab:last:userId:12543|0000000000000001:prodId:54929873";
        assert_eq!((key.as_str(), key.tags()), (expected, &[][..]));
        let without = Naming { master: false, ..naming(false) };
        let single = without.single(without.namespace("userId", &1234).unwrap()).unwrap();
        assert_eq!(without.key(&single, None, &[Some(u64::MAX)]).as_str(), "___userId:1234|ffffffffffffffff");
        let tagged = naming(true);
        let key = tagged.key(&logical, Some(0xab), &[]);
        assert_eq!(key.as_str(), "___00000000000000ab:last:userId:12543:prodId:54929873");
        assert_eq!(key.tags(), ["___userId:12543", "___prodId:54929873", "___00000000000000ab"]);
        assert_eq!(with.record_key(), "___record");
        assert_eq!(with.counter_key(&logical.namespaces[0]), "___counter|userId:12543");
    }

    #[test]
    fn different_parts_give_different_keys() {
        assert_ne!(text("a:b", &[("c", "d")]), text("a", &[("b:c", "d")]));
        assert_ne!(text("n", &[("a:b", "c")]), text("n", &[("a", "b:c")]));
        assert_ne!(text("n", &[("a", "b%3Ac")]), text("n", &[("a", "b:c")]));
        assert_ne!(text("n", &[("a", "b|0000000000000001")]), {
            let naming = naming(false);
            naming.key(&naming.named("n", &[("a", "b")]).unwrap(), Some(0xab), &[Some(1)]).text
        });
        let naming = naming(false);
        let single = naming.single(naming.namespace("n", &"a").unwrap()).unwrap();
        assert_ne!(naming.key(&single, Some(0xab), &[]).text, text("n", &[("a", "b")]));
        assert_eq!(naming.namespace("ä b", &"\u{7f},~").unwrap().text, "%C3%A4%20b:%7F%2C~");
        let long = Naming { separator: "::".to_owned(), ..naming };
        assert_eq!(long.namespace("a:", &":b").unwrap().text, "a%3A::%3Ab");
    }

    #[test]
    fn limits_are_errors() {
        let naming = naming(false);
        let refused = |result: Result<LogicalKey, Error>| result.unwrap_err().to_string();
        assert!(refused(naming.named::<u8>("n", &[])).contains("0 namespaces"));
        assert!(refused(naming.named("n", &[("a", 1); 8])).contains("8 namespaces"));
        assert!(naming.named("n", &[("a", 1); 7]).is_ok());
        assert!(refused(naming.named("", &[("a", 1)])).contains("empty"));
        assert!(naming.namespace("", &1).is_err() && naming.namespace("a", &"").is_err());
        // prefix 3, master 17, name and separator 2, `a:`, counter 17: 41, and the id.
        let fits = naming.named("n", &[("a", "x".repeat(209))]).unwrap();
        assert_eq!(naming.key(&fits, Some(1), &[Some(1)]).as_str().len(), KEY_MAX);
        let long = naming.named("n", &[("a", "x".repeat(210))]);
        assert!(matches!(long, Err(Error::Key(KeyError::Long(251)))), "{long:?}");
        assert!(matches!(naming.namespace("a", &"x".repeat(250)), Err(Error::Key(KeyError::Long(263)))));
        let tagged = Naming { tags: true, ..naming };
        assert!(tagged.namespace("a", &"x".repeat(195)).is_ok());
        assert!(tagged.namespace("a", &"x".repeat(196)).unwrap_err().to_string().contains("201 bytes"));
    }

    #[test]
    fn numbers_are_sixteen_digits() {
        assert_eq!(number(b"00000000000000ff"), Some(255));
        for wrong in [&b"ff"[..], b"", b"00000000000000fg", b"00000000000000ff0", b"\xff0000000000000ff"] {
            assert_eq!(number(wrong), None);
        }
    }
}
