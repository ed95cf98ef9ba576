//! Rules for the tests' worlds.

use std::sync::Arc;

use cattlegrid_engine::rules::{
    Cascade, Change, Changes, Loading, Pattern, Rule, Rules, TagTemplate, Urgency,
};
use cattlegrid_engine::{Prefixes, RulesConfig};
use cattlegrid_herd::Policy;

/// A rule with these tags, without a loader.
pub(crate) fn rule(number: u32, pattern: &str, policy: Policy, tags: &[&str]) -> Rule {
    let pattern = Pattern::parse(pattern).unwrap();
    let tags = tags.iter().map(|tag| TagTemplate::parse(tag, Some(&pattern)).unwrap()).collect();
    Rule { number, pattern, prefix: None, policy, tags, negative_ttl_s: 0, loading: None }
}

/// What `on` does to a key of the pattern invalidates the tag.
pub(crate) fn cascade(on: &[Change], pattern: &str, bump: &str) -> Cascade {
    let pattern = Pattern::parse(pattern).unwrap();
    let bump = vec![TagTemplate::parse(bump, Some(&pattern)).unwrap()];
    let on = on.iter().fold(Changes::default(), |all, change| all.with(*change));
    Cascade { on, pattern: Some(pattern), bump }
}

/// A flush invalidates the tag.
pub(crate) fn on_flush(bump: &str) -> Cascade {
    let bump = vec![TagTemplate::parse(bump, None).unwrap()];
    Cascade { on: Changes::default().with(Change::Flush), pattern: None, bump }
}

/// Rules of patterns and terms.
pub(crate) fn rules(list: &[(&str, Policy)]) -> Arc<Rules> {
    let rule = |(n, (pattern, policy)): (usize, &(&str, Policy))| {
        let pattern = Pattern::parse(pattern).unwrap();
        // Everything by its own name, and all of its kind.
        let own = pattern.text().to_owned();
        let kind = pattern.text().split(':').next().unwrap().to_owned();
        // Counters have none: a collision would make one stale before it is counted up.
        let tags = [own, kind].into_iter().filter(|tag| tag.starts_with("page"));
        let tags = tags.map(|tag| TagTemplate::parse(&tag, Some(&pattern)).unwrap()).collect();
        Rule {
            number: n as u32 + 1,
            pattern,
            policy: *policy,
            tags,
            negative_ttl_s: u32::from(policy.loader),
            loading: policy.loader.then(loading),
            prefix: None,
        }
    };
    Arc::new(Rules::new(list.iter().enumerate().map(rule).collect(), cascades()))
}

/// The loader of a rule whose policy says that it has one.
fn loading() -> Loading {
    Loading { loader: "pages".into(), ttl_s: 60, urgency: Urgency::High, stale: true }
}

/// What happens to `source:7` by a certain change invalidates `page:7`: `gone:7` by a delete, `kept:7` by a
/// set, and so on.
fn cascades() -> Vec<Cascade> {
    let keyed = [
        (Change::Delete, "gone:{id}"),
        (Change::Set, "kept:{id}"),
        (Change::Incr, "counted:{id}"),
        (Change::Touch, "touched:{id}"),
    ];
    keyed.map(|(on, pattern)| cascade(&[on], pattern, "page:{id}")).into()
}

pub(crate) fn config() -> RulesConfig {
    RulesConfig {
        tag_bytes: 1 << 20,
        ledger_bytes: 1 << 20,
        fence_bytes: 1 << 20,
        waiters: 65_536,
        control: (*b"@").into(),
        prefixes: Prefixes::default(),
    }
}
