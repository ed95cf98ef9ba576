//! Groups of statistics in JSON, with the names of `stats`.
//!
//! A group is an object. Lines without labels are its members. Lines with labels are objects in lists; a list
//! has the name of the last label of their prefix, and each object begins with its labels:
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
use crate::hot::{EVERY, HottestKeys, KeyCounts};
use crate::shared::Shared;
use crate::stats::{Definition, Sink, StatGroup, Value, collect, collect_rules, each_lease};

/// The longest list of leases, in bytes, as in `stats leases`.
const LEASES_BYTES: usize = 2 << 20;

/// A group, as text.
pub(super) fn group(group: StatGroup, shared: &Shared, now: Now) -> String {
    text(&group_value(group, shared, now))
}

/// A group, as a value.
pub(super) fn group_value(group: StatGroup, shared: &Shared, now: Now) -> Json {
    collected(group, |tree| collect(group, shared, now, tree))
}

/// The group of rules, with only the rules whose numbers are in `keep`; `total` counts all rules.
pub(super) fn rules_value(shared: &Shared, keep: &[u32]) -> Json {
    collected(StatGroup::Rules, |tree| collect_rules(shared, Some(keep), tree))
}

fn collected(group: StatGroup, collect: impl FnOnce(&mut GroupJson)) -> Json {
    let mut tree = GroupJson::default();
    // These lists are present even if they are empty.
    let list = match group {
        StatGroup::Rules => Some("rule"),
        StatGroup::Loaders => Some("loader"),
        StatGroup::Follow => Some("log"),
        StatGroup::Objects => Some("type"),
        StatGroup::Latency => Some("family"),
        StatGroup::Shares => Some("share"),
        _ => None,
    };
    tree.lists.extend(list.map(|list| (list, Vec::new())));
    collect(&mut tree);
    tree.finish()
}

/// A page as text.
fn text(page: &Json) -> String {
    page.to_string() + "\n"
}

/// The advice on each rule and on the server.
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

/// The keys and shapes with most requests, bytes and misses. All figures are estimates.
pub(super) fn hot(shared: &Shared) -> String {
    text(&hot_value(shared, HOTTEST))
}

/// The same, with lists of at most `most` entries.
pub(super) fn hot_value(shared: &Shared, most: usize) -> Json {
    let HottestKeys { events, by_requests, by_bytes, shapes } =
        HottestKeys::of(shared.lanes.iter().map(|lane| &lane.hot), most);
    let list = |of: Vec<KeyCounts>, name: &str| -> Vec<Json> {
        let one = |counted: &KeyCounts| {
            let KeyCounts { text, count, error, gets, misses, stores, bytes, herd_misses, .. } = counted;
            // Keys are escaped, since a key sent as base64 may contain any byte.
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

/// The most keys and shapes in each list.
const HOTTEST: usize = 50;

/// A group that is being collected.
#[derive(Default)]
struct GroupJson {
    members: Map<String, Json>,
    /// The lists in the order of their first lines: the name, and the objects with the values of their
    /// labels.
    lists: Vec<(&'static str, Vec<LabelRow>)>,
}

/// The values of an object's labels, and the object.
type LabelRow = (String, Map<String, Json>);

impl Sink for GroupJson {
    fn put(&mut self, definition: &'static Definition, labels: &[&dyn Display], value: &Value) {
        let value = json_of(value);
        let own = definition.prefix_labels();
        let name = definition.line_without_prefix(labels).to_string();
        let Some(last) = own.last() else {
            // `total:` is an object. A line with its label after the name, such as a hint, is a plain member.
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
        // The lines of an object are adjacent.
        if objects.last().is_none_or(|(before, _)| *before != key) {
            let labels = own.iter().map(|label| (*label).to_owned()).zip(values.into_iter().map(Json::from));
            objects.push((key, labels.collect()));
        }
        if let Some((_, members)) = objects.last_mut() {
            members.insert(name, value);
        }
    }
}

impl GroupJson {
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
        // This has the decimal places that `stats` prints.
        Value::Decimal(..) => value.to_string().parse::<f64>().map_or(Json::Null, Json::from),
        Value::Text(text) => Json::from(text.as_ref()),
    }
}
