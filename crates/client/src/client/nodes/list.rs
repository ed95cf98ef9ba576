//! The list of a fleet's nodes, as `get @nodes` answers it: an array of objects in JSON.
//!
//! Strict: anything that is not JSON, or lacks what is needed, is not a list; names that are unknown are of
//! later releases.

use serde::Deserialize;

use crate::net::address::{Address, Endpoint};

/// The contents of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeList {
    /// The servers that get keys, in the order of their names, each once. None: there are none, or all are
    /// leaving.
    pub(super) servers: Vec<Address>,
    /// The log of the node that has answered is behind, so that its list may be old.
    pub(super) is_behind: bool,
}

/// A node, as far as it is looked at.
#[derive(Deserialize)]
struct ListedNode {
    address: String,
    state: String,
    /// Whether this is the node that has answered.
    #[serde(default, rename = "self")]
    is_own: bool,
    lag_ms: Option<f64>,
    max_lag_ms: Option<f64>,
}

/// Reads a list. Those get keys that are `up`, or, if no node is, those that are `joining`; all other states
/// get none.
///
/// # Errors
/// In words: it is no JSON, no list of nodes, or has an address that is none.
pub(super) fn read(text: &[u8]) -> Result<NodeList, String> {
    let entries: Vec<ListedNode> =
        serde_json::from_slice(text).map_err(|error| format!("not a list of nodes in JSON: {error}"))?;
    let (mut up, mut joining, mut is_behind) = (Vec::new(), Vec::new(), false);
    for ListedNode { address, state, is_own, lag_ms, max_lag_ms } in entries {
        is_behind |= is_own && lag_ms.zip(max_lag_ms).is_some_and(|(lag, max)| lag > max);
        let server = server(&address)?;
        match &*state {
            "up" => up.push(server),
            "joining" => joining.push(server),
            _ => {}
        }
    }
    let mut servers = if up.is_empty() { joining } else { up };
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    servers.dedup_by(|one, other| one.name == other.name);
    Ok(NodeList { servers, is_behind })
}

/// A node's address: a host and a port. It comes over the network: no weight, and no socket of this machine.
fn server(text: &str) -> Result<Address, String> {
    let address = Address::parse(text).ok();
    let address = address.filter(|own| matches!(own.place, Endpoint::Tcp { .. }) && !text.contains('='));
    address.ok_or_else(|| "a node whose address is none".to_owned())
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
