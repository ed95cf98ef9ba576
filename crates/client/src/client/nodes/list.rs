//! The list of a fleet's nodes, as `get @nodes` answers it: an array of objects in JSON.
//!
//! Read by hand, since the crate has a reader of JSON only with a feature. Strict: anything that is not JSON, or lacks what is needed, is
//! not a list; names that are unknown are of later releases.

use crate::net::address::{Address, Place};

/// Deepest arrays and objects in each other.
const DEPTH_MAX: u32 = 16;

/// What a list says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct List {
    /// The servers that get keys, in the order of their names, each once. None: there are none, or all are leaving.
    pub(super) servers: Vec<Address>,
    /// The log of the node that has answered is behind, so that its list may be old.
    pub(super) is_behind: bool,
}

/// Reads a list. Those get keys that are `up`, or, if no node is, those that are `joining`; all other states get none.
///
/// # Errors
/// In words: it is no JSON, no list of nodes, or has an address that is none.
pub(super) fn read(text: &[u8]) -> Result<List, String> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0).filter(|_| reader.peek().is_none());
    let Some(Value::Array(entries)) = value else { return Err("not a list in JSON".to_owned()) };
    let (mut up, mut joining, mut is_behind) = (Vec::new(), Vec::new(), false);
    for entry in &entries {
        let (Some(state), Some(address)) = (entry.text("state"), entry.text("address")) else {
            return Err("a node without a state or an address".to_owned());
        };
        is_behind |= entry.is_behind();
        match state {
            "up" => up.push(server(address)?),
            "joining" => joining.push(server(address)?),
            _ => drop(server(address)?),
        }
    }
    let mut servers = if up.is_empty() { joining } else { up };
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    servers.dedup_by(|one, other| one.name == other.name);
    Ok(List { servers, is_behind })
}

/// A node's address: a host and a port. It comes over the network: no weight, and no socket of this machine.
fn server(text: &str) -> Result<Address, String> {
    let address = Address::parse(text).ok();
    let address = address.filter(|own| matches!(own.place, Place::Tcp { .. }) && !text.contains('='));
    address.ok_or_else(|| "a node whose address is none".to_owned())
}

/// A value of JSON, as far as it is looked at.
#[derive(Debug, PartialEq)]
enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Value {
    /// The member of an object.
    fn member(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.member(name)? {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<f64> {
        match self.member(name)? {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether this is the node that has answered, and its log is behind.
    fn is_behind(&self) -> bool {
        let lags = self.number("lag_ms").zip(self.number("max_lag_ms"));
        self.member("self") == Some(&Self::Bool(true)) && lags.is_some_and(|(lag, max)| lag > max)
    }
}

/// What has not been read. Each method reads one thing, or returns None where there is none.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    /// The next byte that is not a blank.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    fn word(&mut self, word: &str, value: Value) -> Option<Value> {
        self.rest = self.rest.strip_prefix(word.as_bytes())?;
        Some(value)
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        match self.peek()? {
            b'[' | b'{' if depth == DEPTH_MAX => None,
            b'[' => self.elements(b'[', b']', |reader| reader.value(depth + 1)).map(Value::Array),
            b'{' => {
                let members = self.elements(b'{', b'}', |reader| {
                    let name = reader.text()?;
                    reader.takes(b':').then_some(())?;
                    Some((name, reader.value(depth + 1)?))
                });
                members.map(Value::Object)
            }
            b'"' => self.text().map(Value::Text),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'n' => self.word("null", Value::Null),
            _ => self.number(),
        }
    }

    fn elements<T>(
        &mut self,
        open: u8,
        close: u8,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.takes(open).then_some(())?;
        let mut all = Vec::new();
        if self.takes(close) {
            return Some(all);
        }
        loop {
            all.push(one(self)?);
            if self.takes(close) {
                return Some(all);
            }
            self.takes(b',').then_some(())?;
        }
    }

    fn number(&mut self) -> Option<Value> {
        let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let len = self.rest.iter().take_while(is_part).count();
        let (number, rest) = self.rest.split_at(len);
        self.rest = rest;
        std::str::from_utf8(number).ok()?.parse().ok().map(Value::Number)
    }

    fn text(&mut self) -> Option<String> {
        self.takes(b'"').then_some(())?;
        let mut text = Vec::new();
        loop {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return String::from_utf8(text).ok(),
                b'\\' => text.extend_from_slice(self.escaped()?.encode_utf8(&mut [0; 4]).as_bytes()),
                0..=0x1f => return None,
                byte => text.push(*byte),
            }
        }
    }

    /// What is behind a backslash.
    fn escaped(&mut self) -> Option<char> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match byte {
            b'"' | b'\\' | b'/' => char::from(*byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => match self.unit()? {
                high @ 0xd800..0xdc00 => {
                    self.rest = self.rest.strip_prefix(b"\\u")?;
                    let low = self.unit().filter(|low| (0xdc00..0xe000).contains(low))?;
                    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))?
                }
                unit => char::from_u32(unit)?,
            },
            _ => return None,
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        self.rest = rest;
        let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
        is_hex.then_some(())?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let list = read(text.as_bytes())?;
        Ok(list.servers.iter().map(|server| server.name.to_string()).collect())
    }

    fn list(nodes: &[(&str, &str)]) -> String {
        let nodes = nodes.iter().map(|(address, state)| {
            format!(r#"{{"address":"{address}","applied":7,"lag_ms":null,"name":"n","state":"{state}"}}"#)
        });
        format!("[{}]", nodes.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn a_list_of_a_server() {
        let text = r#" [ {"address":"10.0.0.2:11211","applied":12,"lag_ms":3,"max_lag_ms":3000,"name":"b\u00e4\ud83d\ude00\n",
            "self":true,"state":"up","version":"0.1.0", "later": [{"x": [-1.5e3, {}, []]}, false]},
            {"name":"a","address":"10.0.0.1:11211","state":"up"} ] "#;
        assert_eq!(names(text).unwrap(), ["10.0.0.1:11211", "10.0.0.2:11211"]);
        assert!(!read(text.as_bytes()).unwrap().is_behind);
        for (lag, is_own, is_behind) in [(3000, true, false), (3001, true, true), (3001, false, false)] {
            let own = format!(
                r#"[{{"address":"a:1","state":"up","lag_ms":{lag},"max_lag_ms":3000,"self":{is_own}}}]"#
            );
            assert_eq!(read(own.as_bytes()).unwrap().is_behind, is_behind, "{own}");
        }
    }

    #[test]
    fn states_that_count() {
        let all = [("c:1", "up"), ("a:1", "joining"), ("b:1", "draining"), ("d:1", "up"), ("e:1", "other")];
        assert_eq!(names(&list(&all)).unwrap(), ["c:1", "d:1"]);
        assert_eq!(names(&list(&all[1..3])).unwrap(), ["a:1"], "a fleet that starts");
        assert_eq!(names(&list(&all[2..3])).unwrap(), [""; 0], "all are leaving");
        assert_eq!(names("[]").unwrap(), [""; 0]);
        let again = [("a:1", "up"), ("a:1", "joining"), ("a:1", "up"), ("b:1", "up"), ("b:1", "draining")];
        assert_eq!(names(&list(&again)).unwrap(), ["a:1", "b:1"], "started again: listed twice for a while");
    }

    #[test]
    fn what_is_no_list() {
        let good = list(&[("a:1", "up"), ("b:1", "up")]);
        assert!(names(&good).is_ok());
        for cut in 0..good.len() {
            assert!(names(&good[..cut]).is_err(), "{}", &good[..cut]);
        }
        for wrong in [
            "{}",
            "null",
            "[1]",
            "[[]]",
            "[]]",
            "[] x",
            "[,]",
            r#"[{"state":"up"}]"#,
            r#"[{"state":"up","address":7}]"#,
            r#"[{"state":1,"address":"a:1"}]"#,
            r#"[{"state":"up","address":"\ud800"}]"#,
        ] {
            assert!(names(wrong).is_err(), "{wrong}");
        }
        for address in
            ["", "a:0", "a:1=2", "/run/c.sock", "unix:/run/c.sock", "a b:1", "http://a:1", "a:1,b:1"]
        {
            for state in ["up", "joining", "draining"] {
                assert!(names(&list(&[("b:1", "up"), (address, state)])).is_err(), "{address} {state}");
            }
        }
        let deep = "[".repeat(100_000);
        assert!(names(&deep).is_err());
    }

    proptest! {
        /// Any order of the same nodes is the same list; any bytes are read without a panic.
        #[test]
        fn order_is_nothing(mut hosts in prop::collection::vec(0..9_u8, 1..9), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let text = |hosts: &[u8]| {
                let all: Vec<_> = hosts.iter().map(|host| format!("10.0.0.{host}:1")).collect();
                list(&all.iter().map(|host| (host.as_str(), "up")).collect::<Vec<_>>())
            };
            let before = names(&text(&hosts)).unwrap();
            hosts.reverse();
            prop_assert_eq!(names(&text(&hosts)).unwrap(), before);
            let _any = read(&bytes);
            let _any = read(&[b"[{\"state\":\"", &bytes[..]].concat());
        }
    }
}
