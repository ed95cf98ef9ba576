//! Groups of statistics as JSON, under the names of `stats`.
//!
//! A group is an object. Lines without a label are its members; lines with labels are objects in lists, which are named for the last label
//! of their prefix, and begin with their labels:
//!
//! ```text
//!   {"rules": [{"rule": "1", "match": "page:{id}", "leases": 7, ...}], "total": {"leases": 7, ...}}
//! ```

use std::fmt::Display;
use std::sync::Arc;

use cattlegrid_engine::Now;
use cattlegrid_engine::rules::Rule;
use serde_json::{Map, Value as Json, json};

use crate::advice::{self, Advice};
use crate::hot::{EVERY, Hottest, KeyCounts};
use crate::shared::Shared;
use crate::stats::{Definition, Group, Sink, Value, collect, collect_rules, each_lease};

/// Longest list of leases, in bytes, as that of `stats leases`.
const LEASES_BYTES: usize = 2 << 20;

/// A group, as text.
pub(super) fn group(group: Group, shared: &Shared, now: Now) -> String {
    text(&group_value(group, shared, now))
}

/// A group.
pub(super) fn group_value(group: Group, shared: &Shared, now: Now) -> Json {
    collected(group, |tree| collect(group, shared, now, tree))
}

/// The same of rules, of which only those that `keep` names, by their numbers, are there; `total` counts all.
pub(super) fn rules_value(shared: &Shared, keep: &[u32]) -> Json {
    collected(Group::Rules, |tree| collect_rules(shared, Some(keep), tree))
}

fn collected(group: Group, collect: impl FnOnce(&mut Tree)) -> Json {
    let mut tree = Tree::default();
    // There, whether it has anything or not.
    let list = match group {
        Group::Rules => Some("rule"),
        Group::Loaders => Some("loader"),
        Group::Follow => Some("log"),
        Group::Objects => Some("type"),
        Group::Latency => Some("family"),
        Group::Shares => Some("share"),
        _ => None,
    };
    tree.lists.extend(list.map(|list| (list, Vec::new())));
    collect(&mut tree);
    tree.finish()
}

/// A page.
fn text(page: &Json) -> String {
    page.to_string() + "\n"
}

/// What each rule, and the server, should have otherwise.
pub(super) fn advice(shared: &Shared) -> String {
    let of_rule = |(rule, list): (Arc<Rule>, Vec<Advice>)| -> Vec<Json> {
        let one = |advice: &Advice| {
            json!({
                "rule": rule.number.to_string(), "match": rule.pattern.text(), "about": advice.about, "what": advice.what,
                "toml": advice.toml,
            })
        };
        list.iter().map(one).collect()
    };
    let mut all: Vec<Json> = advice::of_rules(shared).into_iter().flat_map(of_rule).collect();
    all.extend(advice::of_server(shared).iter().map(advice_value));
    text(&json!({ "advice": all }))
}

pub(super) fn advice_value(Advice { about, what, toml }: &Advice) -> Json {
    json!({ "about": about, "what": what, "toml": toml })
}

/// The keys that are being computed.
pub(super) fn leases(shared: &Shared, now: Now) -> String {
    let (mut bytes, mut all, mut cut) = (0, Vec::new(), false);
    each_lease(shared, now, |key, fields| {
        let mut one = Map::new();
        one.insert("key".to_owned(), key.into());
        one.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), json_of(value))));
        bytes += key.len() + 128;
        cut = bytes > LEASES_BYTES;
        if !cut {
            all.push(Json::Object(one));
        }
        !cut
    });
    text(&json!({ "leases": all, "cut": cut }))
}

/// Keys and shapes that are asked for most, move most bytes, and miss most. Figures are estimates.
pub(super) fn hot(shared: &Shared) -> String {
    text(&hot_value(shared, HOTTEST))
}

/// The same with lists of at most this length.
pub(super) fn hot_value(shared: &Shared, most: usize) -> Json {
    let Hottest { events, by_requests, by_bytes, shapes } =
        Hottest::of(shared.lanes.iter().map(|lane| &lane.hot), most);
    let list = |of: Vec<KeyCounts>, name: &str| -> Vec<Json> {
        let one = |counted: &KeyCounts| {
            let KeyCounts { text, count, error, gets, misses, stores, bytes, herd_misses, .. } = counted;
            // As elsewhere: a key sent as base64 may hold anything.
            let text = if name == "key" {
                crate::watch::escaped(text).to_string()
            } else {
                String::from_utf8_lossy(text).into_owned()
            };
            json!({
                (name): text, "count": count, "error": error, "gets": gets, "misses": misses, "stores": stores, "bytes": bytes,
                "herd_misses": herd_misses,
            })
        };
        of.iter().map(one).collect()
    };
    json!({
        "sampled": events,
        "one_turn_in": EVERY,
        "by_requests": list(by_requests, "key"),
        "by_bytes": list(by_bytes, "key"),
        "shapes": list(shapes, "shape"),
    })
}

/// Keys and shapes of each list.
const HOTTEST: usize = 50;

/// A group while it is collected.
#[derive(Default)]
struct Tree {
    members: Map<String, Json>,
    /// Lists in the order in which they came: name, and objects with the values of their labels.
    lists: Vec<(&'static str, Vec<LabelRow>)>,
}

/// The values of labels, and the object that has them.
type LabelRow = (String, Map<String, Json>);

impl Sink for Tree {
    fn put(&mut self, definition: &'static Definition, labels: &[&dyn Display], value: &Value) {
        let value = json_of(value);
        let own = definition.prefix_labels();
        let name = definition.line_without_prefix(labels).to_string();
        let Some(last) = own.last() else {
            // `total:` is an object; a line whose label stands behind its name, such as a hint, is a member like any other.
            match definition.prefix.strip_suffix(':') {
                Some(of) => {
                    let members = self.members.entry(of).or_insert_with(|| Map::new().into());
                    members.as_object_mut().map(|members| members.insert(name, value));
                }
                None => {
                    self.members.insert(name, value);
                }
            }
            return;
        };
        let values: Vec<String> = labels[..own.len()].iter().map(ToString::to_string).collect();
        let key = values.join(":");
        let at = self.lists.iter().position(|(list, _)| list == last).unwrap_or_else(|| {
            self.lists.push((last, Vec::new()));
            self.lists.len() - 1
        });
        let objects = &mut self.lists[at].1;
        // The lines of an object come one after the other.
        if objects.last().is_none_or(|(before, _)| *before != key) {
            let labels = own.iter().map(|label| (*label).to_owned()).zip(values.into_iter().map(Json::from));
            objects.push((key, labels.collect()));
        }
        if let Some((_, members)) = objects.last_mut() {
            members.insert(name, value);
        }
    }
}

impl Tree {
    fn finish(mut self) -> Json {
        for (label, list) in self.lists {
            let name = match label {
                "class" => "classes".to_owned(),
                "family" => "families".to_owned(),
                "place" => "rolling".to_owned(),
                label => format!("{label}s"),
            };
            let objects: Vec<Json> = list.into_iter().map(|(_, members)| members.into()).collect();
            self.members.insert(name, objects.into());
        }
        Json::Object(self.members)
    }
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::Number(number) => (*number).into(),
        // As many places as `stats` prints.
        Value::Decimal(..) => value.to_string().parse::<f64>().map_or(Json::Null, Json::from),
        Value::Text(text) => Json::from(text.as_ref()),
    }
}
