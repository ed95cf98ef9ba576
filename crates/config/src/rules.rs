//! Reading of rules and cascades.

use std::borrow::Cow;

use cattlegrid_engine::rules::{
    Cascade, Change, Changes, Pattern, Rule, Rules, SelfBump, TAGS_MAX, TagTemplate,
};
use cattlegrid_herd::{LeaseTime, Policy};
use cattlegrid_tags::Prefixes;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::{self, CascadeDraft, LOADING, PROTECTING, RuleDraft, TableKey, UNLEASED};
use crate::loader::LoaderSettings;
use crate::loading::{check_loading, find_loader, lease_ms, loading};
use crate::problems::{Problems, line_of, nearest};
use crate::table::{Class, TableRow};
use crate::value::{MINUTE, TextValue};

/// The rules of `[[rule]]`, in order, without those that have problems. `loaders`: the file's loaders;
/// `has_logs`: whether it follows logs.
pub(crate) fn read_rules(
    tables: &[(usize, &DeTable<'_>)],
    (loaders, has_logs): (&[LoaderSettings], bool),
    prefixes: &Prefixes,
    text: &str,
    problems: &mut Problems,
) -> Vec<Rule> {
    let mut rules: Vec<(usize, Rule)> = Vec::new();
    for (number, (offset, table)) in (1..).zip(tables) {
        let label = label("rule", number, table);
        let mut draft = RuleDraft::default();
        read_table(keys::RULE, &label, table, &mut draft, problems);
        let Some((pattern_text, pattern)) =
            read_pattern(draft.pattern.take(), (*offset, table), &label, problems)
        else {
            continue;
        };
        check_prefix(draft.prefix.as_ref(), prefixes, &label, problems);
        let tags = read_tags("tags", &draft.tags, Some(&pattern), &label, problems);
        check_leases(table, &label, problems);
        check_graces(&draft.policy, table, &label, problems);
        check_loading(table, &label, problems);
        check_when_behind(table, has_logs, &label, problems);
        let loader = find_loader(&draft, loaders, &label, problems);
        if let Some(loader) = loader {
            draft.policy.lease =
                LeaseTime::Fixed(lease_ms(draft.policy.lease, loader, table, &label, problems));
        }
        let rule = finish(number, pattern, tags, table, &draft, loader);
        let earlier = rules.iter().find(|(_, earlier)| earlier.covers(&rule));
        if let Some((offset, earlier)) = earlier {
            let line = line_of(text, *offset);
            let problem = if earlier.pattern.text() == rule.pattern.text() {
                format!("{label}: is there already, in line {line}; leave one of them out")
            } else {
                format!(
                    "{label}: can never apply, since rule {} in line {line} takes all of its keys; put it \
                     before that one",
                    earlier.pattern.text()
                )
            };
            problems.add(pattern_text.offset, problem);
        }
        rules.push((pattern_text.offset, rule));
    }
    rules.into_iter().map(|(_, rule)| rule).collect()
}

/// Reports a rule that sets how its items are treated while a log is behind, if there is no log.
fn check_when_behind(table: &DeTable<'_>, has_logs: bool, label: &str, problems: &mut Problems) {
    if let Some((name, _)) = table.get_key_value("when_behind").filter(|_| !has_logs) {
        problems.add(
            name.span().start,
            format!("{label}: when_behind: there is no log that could be behind; write its [follow.NAME], or leave it out"),
        );
    }
}

/// The rule, with the values that are derived from the keys of its table.
fn finish(
    number: u32,
    pattern: Pattern,
    tags: Vec<TagTemplate>,
    table: &DeTable<'_>,
    draft: &RuleDraft,
    loader: Option<&LoaderSettings>,
) -> Rule {
    let named = |name: &str| table.contains_key(name);
    let mut policy = draft.policy;
    policy.grace_on_error_s = policy.kept_s();
    policy.leases = PROTECTING.into_iter().any(named);
    policy.loader = loader.is_some();
    // Old values and early refreshes make holds unnecessary, so that holds must be requested explicitly.
    // Under a loader clients always wait.
    let holds = ["hold", "lease", "grace_on_error"].into_iter().any(named) || policy.loader;
    policy.hold_ms = draft.hold_ms.unwrap_or(if holds { policy.hold_ms } else { 0 });
    policy.hold_many_ms = draft.hold_many_ms.unwrap_or(policy.hold_ms);
    // A loader delivers its values whether clients send or not, so that commands behind a held get need not
    // end the hold.
    let behind_ms = if policy.loader { MINUTE as u32 } else { policy.hold_behind_ms };
    policy.hold_behind_ms = draft.hold_behind_ms.unwrap_or(behind_ms);
    let negative_ttl_s = draft.negative_ttl_s.unwrap_or(u32::from(policy.loader));
    let loading = loader.map(|loader| loading(draft, loader));
    let prefix = draft.prefix.as_ref().map(|prefix| prefix.text.as_str().into());
    Rule { number, pattern, prefix, policy, tags, negative_ttl_s, loading }
}

/// Reports a rule that is limited to a prefix which the server does not have, since it would have no keys.
fn check_prefix(prefix: Option<&TextValue>, prefixes: &Prefixes, label: &str, problems: &mut Problems) {
    let Some(TextValue { text, offset }) = prefix.filter(|own| prefixes.find(own.text.as_bytes()).is_none())
    else {
        return;
    };
    let known: Vec<String> =
        prefixes.all().map(|(_, own)| format!("{:?}", String::from_utf8_lossy(own))).collect();
    let problem = if known.is_empty() {
        format!("{label}: prefix {text:?}: the server has no prefixes; add prefixes = [{text:?}] to [server]")
    } else {
        format!("{label}: prefix {text:?}: is not one of [server] prefixes, which are {}", known.join(", "))
    };
    problems.add(*offset, problem);
}

/// Reports keys for leases in a rule without leases, since they have no effect.
fn check_leases(table: &DeTable<'_>, label: &str, problems: &mut Problems) {
    if PROTECTING.into_iter().any(|name| table.contains_key(name)) {
        return;
    }
    for (name, _) in table {
        let own = &**name.get_ref();
        let is_key = keys::usable(keys::RULE).any(|key| key.row.name == own);
        // Keys for loaders are reported with their own reason.
        if is_key && !UNLEASED.contains(&own) && !LOADING.contains(&own) {
            problems.add(
                name.span().start,
                format!(
                    "{label}: {}: does nothing, since the rule names none of {}; add one",
                    own,
                    PROTECTING.join(", ")
                ),
            );
        }
    }
}

/// Reports settings of old values if no old value is kept.
fn check_graces(policy: &Policy, table: &DeTable<'_>, label: &str, problems: &mut Problems) {
    let offset = |name: &str| table.get_key_value(name).map_or(0, |(name, _)| name.span().start);
    if table.contains_key("grace_on_error") && policy.grace_on_error_s < policy.grace_s {
        let (shorter, grace) = (keys::seconds(policy.grace_on_error_s), keys::seconds(policy.grace_s));
        let problem = format!(
            "{label}: grace_on_error {shorter}: is shorter than grace, which is {grace} and counts while computing fails as well; make it \
             longer, or leave it out"
        );
        problems.add(offset("grace_on_error"), problem);
    }
    if policy.wait_ms > 0 && policy.kept_s() == 0 {
        let problem =
            format!("{label}: wait: does nothing, since no old value is served; add grace = \"30s\"");
        problems.add(offset("wait"), problem);
    }
}

/// The cascades of `[[cascade]]`, in order, each with the offset of its `on`; those with problems are left
/// out.
pub(crate) fn read_cascades(
    tables: &[(usize, &DeTable<'_>)],
    problems: &mut Problems,
) -> Vec<(usize, Cascade)> {
    let mut cascades = Vec::new();
    for (number, (offset, table)) in (1..).zip(tables) {
        let label = label("cascade", number, table);
        let mut draft = CascadeDraft::default();
        read_table(keys::CASCADE, &label, table, &mut draft, problems);
        let on = read_changes(&draft.on, table, *offset, &label, problems);
        let pattern = if on.has(Change::Flush) {
            if let Some(pattern) = &draft.pattern {
                problems.add(pattern.offset, format!("{label}: match: a flush has no key; leave it out"));
            }
            None
        } else {
            match read_pattern(draft.pattern.take(), (*offset, table), &label, problems) {
                Some((_, pattern)) => Some(pattern),
                None => continue,
            }
        };
        let bump = read_tags("bump", &draft.bump, pattern.as_ref(), &label, problems);
        if draft.bump.is_empty() && is_list_or_absent(table, "bump") {
            problems.add(*offset, format!("{label}: lacks bump, the tags to invalidate"));
        }
        let set = draft.on.iter().find(|name| name.text == Change::Set.name());
        cascades.push((set.map_or(*offset, |set| set.offset), Cascade { on, pattern, bump }));
    }
    cascades
}

/// Reports a cascade by which a `set` invalidates the item that it stores, which is never intended. `places`:
/// the offset of `on` of each cascade with a pattern.
pub(crate) fn check_self_bumps(rules: &Rules, places: &[usize], problems: &mut Problems) {
    for SelfBump { cascade, rule, key, tag } in rules.self_bumps() {
        let pattern = |pattern: Option<&Pattern>| pattern.map_or("", Pattern::text).to_owned();
        let own = pattern(rules.all_cascades().nth(cascade).and_then(|cascade| cascade.pattern.as_ref()));
        let rule = pattern(rules.rules().get(rule as usize - 1).map(|rule| &rule.pattern));
        problems.add(
            places[cascade],
            format!(
                "cascade {own}: on \"set\": a set of {key} would invalidate the item that it stores, which has the tag \
                 {tag} by rule {rule}; leave set out, or give the items another tag"
            ),
        );
    }
}

fn read_changes(
    names: &[TextValue],
    table: &DeTable<'_>,
    offset: usize,
    label: &str,
    problems: &mut Problems,
) -> Changes {
    let mut on = Changes::default();
    for name in names {
        let Some(change) = Change::ALL.into_iter().find(|change| change.name() == name.text) else {
            let near = nearest(&name.text, Change::ALL.into_iter().map(Change::name));
            problems.add(name.offset, format!("{label}: on {:?}: is unknown; {near}", name.text));
            continue;
        };
        if on.has(change) {
            problems.add(name.offset, format!("{label}: on {:?}: is there twice", name.text));
        }
        on = on.with(change);
    }
    if on.has(Change::Flush) && on != Changes::default().with(Change::Flush) {
        let problem = "on: flush has no key, so it stands alone; give it a [[cascade]] of its own";
        problems.add(names[0].offset, format!("{label}: {problem}"));
    }
    if names.is_empty() && is_list_or_absent(table, "on") {
        let all: Vec<&str> = Change::ALL.into_iter().map(Change::name).collect();
        problems.add(offset, format!("{label}: lacks on; it is a list of {}", all.join(", ")));
    }
    on
}

/// Whether the key is absent or a list; a value of another type is reported elsewhere.
fn is_list_or_absent(table: &DeTable<'_>, key: &str) -> bool {
    table.get(key).is_none_or(|value| value.get_ref().is_array())
}

/// The name of a table in messages: by its pattern, or by its number if it has none.
fn label(what: &str, number: u32, table: &DeTable<'_>) -> String {
    match table.get("match").map(Spanned::get_ref) {
        Some(DeValue::String(pattern)) if !pattern.is_empty() => format!("{what} {pattern}"),
        _ => format!("{what} {number}"),
    }
}

/// Reads every key of a table into `draft`.
pub(crate) fn read_table<D, S>(
    keys: &[TableKey<D, S>],
    label: &str,
    table: &DeTable<'_>,
    draft: &mut D,
    problems: &mut Problems,
) {
    for (key, value) in table {
        if let Some(row) = keys.iter().map(|key| &key.row).find(|row| row.name == &**key.get_ref()) {
            read_key(row, key, value, label, draft, problems);
        } else {
            let known = keys::usable(keys).map(|key| key.row.name);
            problems.unknown(key.span().start, label, key.get_ref(), known);
        }
    }
}

/// Reads the value of one key into `draft`.
pub(crate) fn read_key<D>(
    row: &TableRow<&'static str, D>,
    key: &Spanned<Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    label: &str,
    draft: &mut D,
    problems: &mut Problems,
) {
    let name = row.name;
    let set = match row.class {
        Class::Honoured(set) => set,
        Class::Refused(why) => return problems.add(key.span().start, format!("{label}: {name}: {why}")),
        _ => unreachable!("keys of a rule file are honoured or refused"),
    };
    if let Err(problem) = row.kind.read_toml(value).and_then(|given| set(draft, &given)) {
        problems.add(value.span().start, format!("{label}: {name} {problem}"));
    }
}

fn read_pattern(
    text: Option<TextValue>,
    (offset, table): (usize, &DeTable<'_>),
    label: &str,
    problems: &mut Problems,
) -> Option<(TextValue, Pattern)> {
    let Some(text) = text else {
        // A pattern of another type is reported elsewhere.
        if !table.contains_key("match") {
            problems.add(offset, format!("{label}: lacks match, the pattern of its keys"));
        }
        return None;
    };
    match Pattern::parse(&text.text) {
        Ok(pattern) => Some((text, pattern)),
        Err(error) => {
            problems.add(text.offset, format!("{label}: match {:?}: {error}", text.text));
            None
        }
    }
}

fn read_tags(
    key: &str,
    texts: &[TextValue],
    pattern: Option<&Pattern>,
    label: &str,
    problems: &mut Problems,
) -> Vec<TagTemplate> {
    if let Some(extra) = texts.get(TAGS_MAX) {
        problems.add(extra.offset, format!("{label}: {key}: {} of them; at most {TAGS_MAX}", texts.len()));
    }
    let mut tags = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        if texts[..index].iter().any(|earlier| earlier.text == text.text) {
            problems.add(text.offset, format!("{label}: {key} {:?}: is there twice", text.text));
        }
        match TagTemplate::parse(&text.text, pattern) {
            Ok(tag) => tags.push(tag),
            Err(error) => problems.add(text.offset, format!("{label}: {key} {:?}: {error}", text.text)),
        }
    }
    tags
}
