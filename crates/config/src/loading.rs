//! Reading of the keys of a `[[rule]]` that concern its loader.

use std::sync::Arc;

use cattlegrid_engine::rules::Loading;
use cattlegrid_herd::LeaseTime;
use toml::de::DeTable;

use crate::keys::{CLIENTS_COMPUTE, LOADING, RuleDraft};
use crate::loader::LoaderSettings;
use crate::problems::{Problems, nearest};
use crate::value::{SECOND, show_ms};

/// The loader that a rule names, if it names one; an unknown name is a problem.
pub(crate) fn find_loader<'l>(
    draft: &RuleDraft,
    loaders: &'l [LoaderSettings],
    label: &str,
    problems: &mut Problems,
) -> Option<&'l LoaderSettings> {
    let given = draft.loader.as_ref()?;
    let found = loaders.iter().find(|loader| loader.name == given.text);
    if found.is_none() {
        let fix = if loaders.is_empty() {
            "write its [loader.NAME]".to_owned()
        } else {
            nearest(&given.text, loaders.iter().map(|loader| loader.name.as_str()))
        };
        problems
            .add(given.offset, format!("{label}: loader {:?}: there is no such loader; {fix}", given.text));
    }
    found
}

/// Reports keys that have no effect with a loader, or without one.
pub(crate) fn check_loading(table: &DeTable<'_>, label: &str, problems: &mut Problems) {
    let has_loader = table.contains_key("loader");
    for (name, _) in table {
        let problem = match &**name.get_ref() {
            own if !has_loader && LOADING.contains(&own) => {
                "is for the values of a loader; name a loader too"
            }
            own if has_loader && CLIENTS_COMPUTE.contains(&own) => {
                "does nothing under a loader, since no client computes; leave it out"
            }
            _ => continue,
        };
        problems.add(name.span().start, format!("{label}: {}: {problem}", name.get_ref()));
    }
}

/// How long a job of the loader has the lease of its key, in milliseconds; `given`: the rule's value.
pub(crate) fn lease_ms(
    given: LeaseTime,
    loader: &LoaderSettings,
    table: &DeTable<'_>,
    label: &str,
    problems: &mut Problems,
) -> u32 {
    let timeout_ms = u32::try_from(loader.timeout.as_millis()).expect("timeouts fit");
    // A job that has used all its time must still find its lease.
    let default_ms = timeout_ms + SECOND as u32;
    let LeaseTime::Fixed(ms) = given else { return default_ms };
    if ms <= timeout_ms {
        let offset = table.get("lease").map_or(0, |value| value.span().start);
        let [shown, timeout, default] = [ms, timeout_ms, default_ms].map(|ms| show_ms(ms.into()));
        problems.add(
            offset,
            format!(
                "{label}: lease {shown:?}: ends before a job of loader {} must ({timeout:?}); make it longer, or leave it \
                 out for {default:?}",
                loader.name
            ),
        );
    }
    ms
}

/// The rule's settings of its loader.
pub(crate) fn loading(draft: &RuleDraft, loader: &LoaderSettings) -> Loading {
    Loading {
        loader: Arc::from(loader.name.as_str()),
        ttl_s: draft.ttl_s,
        urgency: draft.urgency,
        stale: loader.stale,
    }
}
