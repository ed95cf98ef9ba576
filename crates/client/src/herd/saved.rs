//! The right to deliver a value, as text: for another process, which may have another connection, or run
//! later.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{AsciiSet, PercentEncode, percent_decode_str, percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::acquire::Subject;
use super::grant::SavedRight;
use crate::error::Error;
use crate::net::wire::ESCAPED;

/// A [`Token`](crate::Token) that has left its process: text (`to_string` and `parse`) of printable ASCII
/// without blanks, and the same for serde. [`Herd::resume`](crate::Herd::resume) makes a token of it again,
/// in any process that has the same servers.
///
/// Any program that has the text can store the value of its key: keep it as safe as the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedToken {
    pub(super) subject: Subject,
    pub(super) ttl: Duration,
    pub(super) right: SavedRight,
}

/// The beginning of the text, with its version.
const VERSION: &str = "cg1";

impl SavedToken {
    /// The key that the token is for.
    pub fn key(&self) -> &[u8] {
        &self.subject.key
    }
}

impl fmt::Display for SavedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}:{}:", self.ttl.as_millis())?;
        match self.right {
            SavedRight::Lease { token, lock_ms } => write!(f, "lease:{token}:{lock_ms}:0:0")?,
            SavedRight::Lock { nonce, began_ms, lock_ms, keep_s } => {
                write!(f, "lock:{nonce}:{lock_ms}:{began_ms}:{keep_s}")?;
            }
            SavedRight::Nothing => f.write_str("nothing:0:0:0:0")?,
        }
        write!(f, ":{}", escaped(&self.subject.key))?;
        self.subject.tags.iter().try_for_each(|tag| write!(f, ":{}", escaped(tag.as_bytes())))
    }
}

impl FromStr for SavedToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| Error::Usage("this is not the text of a saved token".to_owned()))
    }
}

impl Serialize for SavedToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SavedToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

fn parse(text: &str) -> Option<SavedToken> {
    let mut parts = text.split(':');
    if parts.next()? != VERSION {
        return None;
    }
    let ttl = Duration::from_millis(parts.next()?.parse().ok()?);
    let kind = parts.next()?;
    let (id, lock_ms) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (began_ms, keep_s) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let right = match kind {
        "lease" => SavedRight::Lease { token: id, lock_ms },
        "lock" => SavedRight::Lock { nonce: id, began_ms, lock_ms, keep_s },
        "nothing" => SavedRight::Nothing,
        _ => return None,
    };
    let key = Bytes::from(unescaped(parts.next()?)?);
    crate::key::check(&key).ok()?;
    let tags: Option<Vec<_>> = parts.map(|tag| String::from_utf8(unescaped(tag)?).ok()).collect();
    Some(SavedToken { subject: Subject { key, tags: tags? }, ttl, right })
}

/// Letters, digits and `-._~/` stay as they are.
fn escaped(bytes: &[u8]) -> PercentEncode<'_> {
    const SET: &AsciiSet = &ESCAPED.remove(b'/');
    percent_encode(bytes, SET)
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let is_escape =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    text.split('%').skip(1).all(is_escape).then(|| percent_decode_str(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_right_is_read_as_it_was_written() {
        let lock = SavedRight::Lock { nonce: u64::MAX, began_ms: 7, lock_ms: 30_000, keep_s: 61 };
        for right in [SavedRight::Lease { token: 42, lock_ms: 30_000 }, lock, SavedRight::Nothing] {
            for tags in [vec![], vec!["user:1".to_owned(), "a%b,ä".to_owned()]] {
                let subject = Subject { key: Bytes::from_static(b"page:\xff%:1"), tags };
                let saved = SavedToken { subject, ttl: Duration::from_millis(1500), right };
                let text = saved.to_string();
                assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
                assert_eq!(text.parse(), Ok(saved.clone()));
                let json = serde_json::to_string(&saved).unwrap();
                assert_eq!(serde_json::from_str::<SavedToken>(&json).unwrap(), saved);
            }
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let good = "cg1:1000:lease:5:30000:0:0:k";
        assert!(good.parse::<SavedToken>().is_ok());
        let bad =
            ["", "cg2:1000:lease:5:30000:0:0:k", "cg1:1000:lease:x:30000:0:0:k", "cg1:1:lease:5:3:0:0:"];
        for text in bad.into_iter().chain([
            "cg1:1:lease:5:3:0:0:%2",
            "cg1:1:lease:5:3:0:0:a%20b",
            "cg1:1:no:5:3:0:0:k",
        ]) {
            assert!(matches!(text.parse::<SavedToken>(), Err(Error::Usage(_))), "{text}");
        }
        for cut in 0..good.len() {
            assert!(good[..cut].parse::<SavedToken>().is_err(), "{}", &good[..cut]);
        }
    }
}
