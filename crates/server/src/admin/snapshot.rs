//! The state that the dashboard shows: parts of the pages in JSON, with limits, and with objects by name
//! instead of lists, so that differences are small.

use cattlegrid_engine::Now;
use serde_json::{Map, Value as Json, json};

use super::json;
use crate::advice::{self, RuleAdvice};
use crate::shared::Shared;
use crate::stats::StatGroup;

/// The most rules, loaders, types, methods, shares and logs, of each kind, in a snapshot. Pages in JSON have
/// all.
const SHOWN: usize = 50;
/// The most keys and shapes.
const HOTTEST: usize = 10;
/// The most slow computations.
const SLOWEST: usize = 20;

/// A snapshot at `now`.
pub(super) fn of(shared: &Shared, now: Now) -> Json {
    let group = |group| json::group_value(group, shared, now);
    let by = |of, list: &str, labels: &[&str]| by_label(&mut group(of), list, labels);
    let mut objects = group(StatGroup::Objects);
    let types = by_label(&mut objects, "types", &["type"]);
    let methods = by_label(&mut objects, "methods", &["type", "method"]);
    let advised = advice::of_rules(shared);
    let mut rules = json::rules_value(shared, &most_used(shared, &advised));
    let rules_shown = by_label(&mut rules, "rules", &["rule"]);
    let count = shared.engine.shared().rules().as_ref().map_or(0, |active| active.rules().rules().len());
    json!({
        "time_ms": now.ms,
        "stats": group(StatGroup::General),
        "cattlegrid": group(StatGroup::Own),
        "rules": rules_shown,
        "rules_all": count,
        "total": rules["total"].take(),
        "advice": all_advice(shared, &advised),
        "advised": advised.len(),
        "tags": group(StatGroup::Tags),
        "loaders": by(StatGroup::Loaders, "loaders", &["loader"]),
        "types": types,
        "methods": methods,
        "objects": objects,
        "follow": by(StatGroup::Follow, "logs", &["log"]),
        "nodes": parsed(&shared.engine.shared().nodes_json(now.ms)),
        "shares": by(StatGroup::Shares, "shares", &["share"]),
        "hot": json::hot_value(shared, HOTTEST),
        "slow": slowest(shared, now),
    })
}

/// The numbers, in ascending order, of the rules with advice and of the rules with most requests.
fn most_used(shared: &Shared, advised: &[RuleAdvice]) -> Vec<u32> {
    let is_advised = |number| advised.iter().any(|(rule, _)| rule.number == number);
    let active = shared.engine.shared().rules();
    let Some(active) = active.as_ref() else { return Vec::new() };
    let each = active.each().map(|(rule, state)| {
        use std::sync::atomic::Ordering::Relaxed;
        let counters = state.counters();
        let used = [&counters.gets, &counters.leases, &counters.held].map(|count| count.load(Relaxed));
        (!is_advised(rule.number), u64::MAX - used.iter().sum::<u64>(), rule.number)
    });
    let mut all: Vec<_> = each.collect();
    all.sort_unstable();
    let mut numbers: Vec<u32> = all.into_iter().take(SHOWN).map(|(.., number)| number).collect();
    numbers.sort_unstable();
    numbers
}

/// The advice by the number of the rule, and that on the server as "server".
fn all_advice(shared: &Shared, advised: &[RuleAdvice]) -> Json {
    let list = |of: &[advice::Advice]| of.iter().map(json::advice_value).collect::<Json>();
    let of_rules = advised.iter().take(SHOWN);
    let mut all: Map<_, _> = of_rules.map(|(rule, advice)| (rule.number.to_string(), list(advice))).collect();
    let of_server = advice::of_server(shared);
    if !of_server.is_empty() {
        all.insert("server".to_owned(), list(&of_server));
    }
    all.into()
}

/// Takes a list out of a page, as an object with its first members by their labels.
fn by_label(page: &mut Json, list: &str, labels: &[&str]) -> Json {
    let Some(Json::Array(all)) = page.as_object_mut().and_then(|page| page.remove(list)) else {
        return json!({});
    };
    let name = |one: &Json| {
        let labels = labels.iter().map(|label| one[label].as_str().unwrap_or_default());
        labels.collect::<Vec<_>>().join(":")
    };
    all.into_iter().take(SHOWN).map(|one| (name(&one), one)).collect::<Map<_, _>>().into()
}

/// Slow computations of late: for each kind and shape the longest, the number, and the end of the last one;
/// the slowest first.
fn slowest(shared: &Shared, now: Now) -> Json {
    let mut page = parsed(&shared.engine.shared().slow().json(now.ms));
    let Some(Json::Array(mut all)) = page.as_object_mut().and_then(|page| page.remove("slow")) else {
        return json!([]);
    };
    let ms = |one: &Json| one["ms"].as_f64().unwrap_or_default();
    all.sort_by(|one, other| ms(other).total_cmp(&ms(one)));
    let mut kinds: Vec<Json> = Vec::new();
    for one in all {
        let at_ms = now.ms.saturating_sub(one["ago_ms"].as_u64().unwrap_or_default());
        let is_same = |own: &&mut Json| own["kind"] == one["kind"] && own["shape"] == one["shape"];
        if let Some(own) = kinds.iter_mut().find(is_same) {
            own["times"] = (own["times"].as_u64().unwrap_or_default() + 1).into();
            own["at_ms"] = own["at_ms"].as_u64().unwrap_or_default().max(at_ms).into();
        } else {
            let (kind, shape, ms) = (&one["kind"], &one["shape"], &one["ms"]);
            kinds.push(json!({ "kind": kind, "shape": shape, "ms": ms, "at_ms": at_ms, "times": 1 }));
        }
    }
    kinds.truncate(SLOWEST);
    kinds.into()
}

fn parsed(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_default()
}

/// The merge patch (RFC 7396) that changes `old` into `new`; None: they are equal. Members that are null
/// count as absent.
pub(super) fn patch(old: &Json, new: &Json) -> Option<Json> {
    let (Json::Object(before), Json::Object(after)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let gone = before.keys().filter(|name| !after.contains_key(*name)).map(|name| (name.clone(), Json::Null));
    let changed = after.iter().filter_map(|(name, value)| {
        let patch = match before.get(name) {
            Some(before) => patch(before, value),
            None => Some(value.clone()),
        };
        patch.map(|patch| (name.clone(), patch))
    });
    let all: Map<_, _> = gone.chain(changed).collect();
    (!all.is_empty()).then_some(Json::Object(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_has_what_changed_only() {
        let old = json!({"a": 1, "b": {"c": [1, 2], "d": "x"}, "gone": {"e": 1}});
        assert_eq!(patch(&old, &old), None);
        let new = json!({"a": 2, "b": {"c": [1, 2], "d": "y"}, "new": {"f": null}});
        assert_eq!(
            patch(&old, &new),
            Some(json!({"a": 2, "b": {"d": "y"}, "gone": null, "new": {"f": null}}))
        );
    }
}
