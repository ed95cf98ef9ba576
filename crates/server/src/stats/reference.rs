//! The reference page of statistics, made of their definitions.

use std::fmt::Write as _;

use super::definition::{Definition, StatRow, ValueKind};
use super::{
    StatGroup, conns, follow, general, items, latency, leases, loaders, objects, own, rules, shares, tags,
};

/// The text of `docs/statistics.md`.
pub fn reference_markdown() -> String {
    let mut text = String::from(INTRODUCTION);
    for (group, before, behind) in SECTIONS {
        text.push_str(before);
        let own: Vec<_> = definitions(*group).into_iter().filter(|definition| !definition.is_sum()).collect();
        table(&mut text, &own);
        text.push_str(behind);
    }
    text.push_str(LEASES);
    table(&mut text, &leases::FIELDS.iter().map(|row| &row.definition).collect::<Vec<_>>());
    text.push_str(LISTS);
    text
}

/// The definitions of a group, each once, in their order.
pub(super) fn definitions(group: StatGroup) -> Vec<&'static Definition> {
    let mut all = Vec::new();
    match group {
        StatGroup::General => add(&mut all, general::ROWS),
        StatGroup::Own => add(&mut all, own::ROWS),
        StatGroup::Items => add(&mut all, items::ITEMS),
        StatGroup::Slabs => {
            add(&mut all, items::SLABS);
            add(&mut all, items::ALL_SLABS);
        }
        StatGroup::Sizes => all.push(&items::SIZES),
        // A listener has no other lines.
        StatGroup::Conns => add(&mut all, conns::CONNECTIONS),
        StatGroup::Rules => {
            add(&mut all, rules::TERMS);
            all.extend(
                rules::COUNTERS
                    .iter()
                    .chain([&rules::WAITS, &rules::WAITS_LONGER, &rules::WAITED])
                    .chain(&rules::TOTALS)
                    .chain([&rules::HINT]),
            );
        }
        StatGroup::Tags => {
            add(&mut all, tags::BEFORE_ROLLING);
            add(&mut all, tags::ROLLING);
            add(&mut all, tags::BEHIND_ROLLING);
        }
        StatGroup::Loaders => {
            add(&mut all, loaders::LOADERS);
            add(&mut all, loaders::TRANSIT);
        }
        StatGroup::Follow => add(&mut all, follow::LOGS),
        StatGroup::Objects => {
            add(&mut all, objects::TYPES);
            add(&mut all, objects::METHODS);
            add(&mut all, objects::ALL);
        }
        StatGroup::Shares => add(&mut all, shares::ROWS),
        StatGroup::Latency => {
            all.extend([&latency::SAMPLES, &latency::SAMPLES_LONGER, &latency::SAMPLES_US]);
        }
    }
    all
}

fn add<S>(to: &mut Vec<&'static Definition>, rows: &'static [StatRow<S>]) {
    to.extend(rows.iter().map(|row| &row.definition));
}

fn table(text: &mut String, definitions: &[&'static Definition]) {
    text.push_str("| line | kind | unit | meaning |\n|---|---|---|---|\n");
    for definition in definitions {
        let Definition { name, prefix, suffix, kind, unit, help, when, .. } = definition;
        let unit = if *kind == ValueKind::Text { "" } else { unit.name() };
        let when = if when.is_empty() { String::new() } else { format!(" Only {when}.") };
        // Writing to a string cannot fail.
        let _ok = writeln!(text, "| `{prefix}{name}{suffix}` | {} | {unit} | {help}{when} |", kind.name());
    }
}

const INTRODUCTION: &str = "# Statistics

<!-- Written by `cargo xtask docs`; change crates/server/src/stats instead. -->

`stats` has memcached's names, in memcached's order, and by default the same number of lines. Monitoring that reads them
works unchanged. What does not exist here (slabs, the LRU crawler, `libevent`) reads 0 or its sensible equivalent.

A *counter* only grows, until the server ends or `stats reset` sets it to 0; counters that `stats reset` leaves are named
under their table. A *gauge* goes up and down, or is fixed. Numbers are sums over all threads and shards. What commands change is exact at the next `stats`: an
item that was stored counts. What would have to be searched for is noted once a second, and its meaning says so.

In a line's name, a word in braces is a label: `{rule}` is the number of a rule, from 1 on, `{class}` is always 1 (all items are
in one class), `{fd}` a descriptor,
`{share}` that of a share, `{family}` a family of commands, `{loader}` the name of a loader, `{type}` and `{method}` are those of objects.

";

/// Groups, each with the text before its table and after it.
const SECTIONS: &[(StatGroup, &str, &str)] = &[
    (
        StatGroup::General,
        "## `stats`\n\n",
        "
`stats reset` leaves `rusage_user`, `rusage_system`, `listen_disabled_num`, `time_in_listen_disabled_us`, `lru_crawler_starts`
and `idle_kicks`. A held get counts when it is answered: as a hit with the value, as a miss without. Control keys count as
hits. Replies that clients do not take, uploads and memory that the system refuses are told of in
[limits](protocol.md#limits).

",
    ),
    (StatGroup::Items, "## `stats items`\n\nNothing while there are no items.\n\n", "\n"),
    (
        StatGroup::Slabs,
        "## `stats slabs`\n\nOne class: its pages are segments, its chunks are the items. Only the last two lines before the \
         first item.\n\n",
        "\n",
    ),
    (
        StatGroup::Sizes,
        "## `stats sizes`\n\n",
        "
With `-o track_sizes`, for each size a line `<bytes> <items>`, in order: items of up to that many bytes, a multiple of 32, and
of more than 32 bytes less. A size is that of `lru_crawler metadump`: header, key and value. All items are looked at while the command
waits for its reply, in short turns as for a dump; by the binary protocol they are looked at in one turn.

",
    ),
    (
        StatGroup::Conns,
        "## `stats conns`\n\nLines for each listener, then for each connection.\n\n",
        "\n",
    ),
    (
        StatGroup::Own,
        "## `stats cattlegrid`\n\nWhat memcached has no name for.\n\n",
        "
`stats reset` leaves `auth_closed`, `not_allowed`, `memory_refused`, `dumps_stalled`, `accept_errors`, `log_lines_...`, `clock` and
`fence_collisions`. See [commands that arrive in pieces](protocol.md#commands-that-arrive-in-pieces) for uploads,
[replies that clients do not take](protocol.md#replies-that-clients-do-not-take) for `unsent_...` and `pinned_bytes`, and
[memory that the system refuses](protocol.md#memory-that-the-system-refuses) for `memory_refused`.

",
    ),
    (
        StatGroup::Rules,
        "## `stats rules`\n\nA block for each rule, in the order of the rule file, then the sums of all rules in force: the \
         counters from `leases` to `negatives`, with `total:` in the place of the rule's number. Nothing without a rule \
         file.\n\n",
        "\nSee [`reentry`](herd.md#the-other-parameters) for `held_reentered`.\n\n",
    ),
    (
        StatGroup::Tags,
        "## `stats tags`\n\n",
        "\n`stats reset` leaves all of them. `get @tag:T` has the share `false_stale` for what was stored before T's last invalidation, counted at that moment.\n\n",
    ),
    (
        StatGroup::Loaders,
        "## `stats loaders`\n\nA block for each loader, by name, then all results on their way. Nothing without a loader.\n\n",
        "\n`stats reset` sets the counters of jobs to 0. What is told of a pool begins anew with each reload.\n\n",
    ),
    (
        StatGroup::Follow,
        "## `stats follow`\n\nA block for each log that is [followed](follow.md), by name. Nothing without one.\n\n",
        "\n`stats reset` leaves all of them.\n\n",
    ),
    (
        StatGroup::Objects,
        "## `stats objects`\n\nFor each type that is switched on what its objects hold, then a block for each of its methods; behind all types \
         the sums. Nothing while objects are switched off.\n\n",
        "\n`stats reset` sets what is told of methods to 0.\n\n",
    ),
    (
        StatGroup::Shares,
        "## `stats shares`\n\nA block for each [`[[share]]`](configuration.md#share) in the order of the file, by its number from 1 on; then, as number 0, \
         what the keys of no share have. Nothing without shares.\n\n",
        "\n",
    ),
    (
        StatGroup::Latency,
        "## `stats latency`\n\nHow long requests take in the server, from the receive to the send, by family of commands: `get` (also `gat` and `mg`), `store`, \
         `delete`, `arithmetic`, `touch`, `other`. One request in 64 of each thread is sampled. \
         What arrives together is received and sent together, and counts for the family of its last request that is not `other`. Requests that are held do not count: \
         `stats rules` has their waits.\n\n",
        "\n",
    ),
];

const LEASES: &str = "## `stats leases`

A line for each key that is being computed, 2 MiB at most: the key, in which bytes that are not plain text are shown as `%` and
two digits, then `name=value` for each of these:

";

const LISTS: &str = "
## Other commands

| command | here |
|---|---|
| `stats settings` | the options in force; those without effect as they were given |
| `stats cachedump <class> <limit>` | keys of class 1; 2 MiB at most; refused under `-X` |
| `stats detail on`, `off`, `dump` | counts by key prefix, up to the character of `-D`, of classic gets, stores (refused ones as well) and deletes (found or not), as in memcached. 16,384 prefixes at most; keys with further ones are not counted |
| `stats reset` | counters start again at 0 |
";
