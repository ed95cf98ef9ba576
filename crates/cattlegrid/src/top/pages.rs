//! The pages besides the main one, as tables.

use super::figures::{NumberStyle, millis, rate, rate_of_bytes, seconds, share};
use super::model::Model;
use super::reply::StatsRequest;
use super::sections::{BUSY, MADE, PROMOTED, drops, memory_used, sections};
use super::table::{Cell, Column, SortOrder, Table, number, text};

/// The pages, in the order of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Main,
    Rules,
    Loaders,
    Objects,
    Keys,
    Slow,
    Memory,
    Fleet,
    Times,
    All,
}

impl View {
    pub(super) const ALL: [Self; 10] = [
        Self::Main,
        Self::Rules,
        Self::Loaders,
        Self::Objects,
        Self::Keys,
        Self::Slow,
        Self::Memory,
        Self::Fleet,
        Self::Times,
        Self::All,
    ];

    /// The requests of this page besides those that are always sent.
    pub(super) fn asks(self) -> &'static [StatsRequest] {
        match self {
            Self::Objects => &[StatsRequest::Objects],
            Self::Slow => &[StatsRequest::Slow, StatsRequest::Leases],
            Self::Memory => &[StatsRequest::Shares, StatsRequest::Slabs, StatsRequest::Items],
            Self::Fleet => &[StatsRequest::Nodes],
            Self::Times => &[StatsRequest::Latency],
            Self::Main | Self::Rules | Self::Loaders | Self::Keys | Self::All => &[],
        }
    }

    /// The order in which the page's table is sorted at first.
    pub(super) fn sort(self) -> Option<SortOrder> {
        match self {
            Self::Rules => Some(SortOrder { column: 3, falls: true }),
            Self::Objects => Some(SortOrder { column: 1, falls: true }),
            _ => None,
        }
    }
}

/// How a table shows counters.
#[derive(Debug, Clone, Copy)]
pub(super) struct CounterView {
    pub(super) hand: NumberStyle,
    /// Whether totals since the start are shown, instead of rates.
    pub(super) totals: bool,
}

/// The tables of a page. The first one can be sorted. `rule`: its lines are shown instead.
pub(super) fn page(model: &Model, view: View, rule: Option<&str>, shown: CounterView) -> Vec<Table> {
    let page = Page { model, shown };
    if view == View::Rules
        && let Some(rule) = rule
    {
        return vec![page.rule(rule)];
    }
    match view {
        View::Main => sections(model, shown.hand),
        View::Rules => vec![page.rules(), page.advice()],
        View::Loaders => vec![page.loaders()],
        View::Objects => vec![page.methods(), page.types()],
        View::Keys => page.keys(),
        View::Slow => vec![page.slow(), page.leases()],
        View::Memory => vec![page.uses(), drops(model, shown.hand), page.shares(), page.slabs()],
        View::Fleet => vec![page.followers(), page.nodes(), page.tags()],
        View::Times => vec![page.times()],
        View::All => vec![page.all()],
    }
}

struct Page<'m> {
    model: &'m Model,
    shown: CounterView,
}

/// Counters of gets with a value, including held ones, as in `get_hits`.
const HITS: [&str; 3] = ["hits", "held_filled", "held_old"];
const RULES: [(&str, &[&str]); 14] = [
    ("made", &MADE),
    ("saved", &["computes_saved"]),
    ("held", &["held"]),
    ("stale", &["stale_served"]),
    ("promoted", &PROMOTED),
    ("not held", &BUSY),
    ("dropped", &["fills_dropped"]),
    ("expired", &["hold_expired"]),
    ("failed", &["failures"]),
    ("unfilled", &["unset"]),
    ("loads", &["loads"]),
    ("early", &["leases_early"]),
    ("passed", &["pass_misses"]),
    ("negative", &["negatives"]),
];

impl Page<'_> {
    fn count(&self, ask: StatsRequest, label: &str, names: &[&str]) -> Cell {
        if self.shown.totals {
            let sum = self.model.sum(ask, label, names);
            let text = match names {
                [one] => self.shown.hand.count(self.model.text(ask, label, one)),
                _ => sum.map_or_else(|| "-".to_owned(), |sum| self.shown.hand.number(sum)),
            };
            Cell::number(text, sum)
        } else {
            let rates = self.model.rates(ask, label, names);
            Cell::number(rate(rates), rates)
        }
    }

    fn gauge(&self, ask: StatsRequest, label: &str, name: &str) -> Cell {
        let text = self.shown.hand.count(self.model.text(ask, label, name));
        Cell::number(text, self.model.number(ask, label, name))
    }

    fn bytes(&self, ask: StatsRequest, label: &str, name: &str) -> Cell {
        Cell::number(
            self.shown.hand.bytes(self.model.text(ask, label, name)),
            self.model.number(ask, label, name),
        )
    }

    fn ms(&self, ask: StatsRequest, label: &str, name: &str, in_a_ms: f64) -> Cell {
        let ms = self.model.number(ask, label, name).map(|time| time / in_a_ms);
        Cell::number(ms.map_or_else(|| "-".to_owned(), millis), ms)
    }

    fn word(&self, ask: StatsRequest, label: &str, name: &str) -> Cell {
        Cell::text(self.model.text(ask, label, name).unwrap_or("-"))
    }

    /// The text of an empty table.
    fn nothing(&self, ask: StatsRequest, nothing: &str) -> String {
        match self.model.refused(ask) {
            Some(said) => format!("{}: {said}", ask.command()),
            None if self.model.group(StatsRequest::Stats).is_none() => "no answer yet".to_owned(),
            None if self.model.group(ask).is_none() && self.model.is_cattlegrid() => {
                "not asked yet".to_owned()
            }
            None if self.model.group(ask).is_none() => "this server has none".to_owned(),
            None => nothing.to_owned(),
        }
    }

    /// The time base of a group's counters, for a table's title: since the start, or per second.
    fn counted(&self, ask: StatsRequest) -> String {
        match self.model.span_ms(ask) {
            _ if self.shown.totals => "since start".to_owned(),
            Some(ms) if ms >= 1500 => format!("per second, over {}", seconds((ms + 500) / 1000)),
            _ => "per second".to_owned(),
        }
    }

    fn rules(&self) -> Table {
        let mut columns = vec![number("#"), text("match"), number("hit %"), number("gets")];
        columns.extend(RULES[..4].iter().map(|(name, _)| number(name)));
        columns.extend([number("now"), number("p99")]);
        columns.extend(RULES[4..].iter().map(|(name, _)| number(name)));
        columns.push(number("lease"));
        let labels: Vec<&str> =
            self.model.labels(StatsRequest::Rules).filter(|label| *label != "total").collect();
        let matched =
            labels.iter().filter(|label| self.model.text(StatsRequest::Rules, label, "matched") == Some("1"));
        let title = format!(
            "rules: {}, of which {} have matched; {}",
            labels.len(),
            matched.count(),
            self.counted(StatsRequest::Rules)
        );
        let mut table = Table::new(title, &columns)
            .or_say(&self.nothing(StatsRequest::Rules, "no rule file (--config FILE)"));
        for label in labels {
            let pattern = self.model.text(StatsRequest::Rules, label, "match").unwrap_or("-");
            let prefix = self.model.text(StatsRequest::Rules, label, "prefix").unwrap_or_default();
            let of = |names: &[&str]| {
                let model = self.model;
                if self.shown.totals {
                    model.sum(StatsRequest::Rules, label, names)
                } else {
                    model.rates(StatsRequest::Rules, label, names)
                }
            };
            let hits = of(&HITS).zip(of(&["gets"]));
            let hits =
                hits.filter(|(_, gets)| *gets > 0.0).map(|(hits, gets)| (hits / gets * 100.0).min(100.0));
            let mut cells = vec![
                Cell::number(label.to_owned(), label.parse().ok()),
                Cell::text(format!("{prefix}{pattern}")),
                Cell::number(hits.map_or_else(|| "-".to_owned(), |hits| format!("{hits:.1}")), hits),
                self.count(StatsRequest::Rules, label, &["gets"]),
            ];
            let of = |columns: &'static [(&str, &[&str])]| {
                columns
                    .iter()
                    .map(|(_, names)| self.count(StatsRequest::Rules, label, names))
                    .collect::<Vec<_>>()
            };
            cells.extend(of(&RULES[..4]));
            cells.push(self.gauge(StatsRequest::Rules, label, "computing"));
            cells.push(self.ms(StatsRequest::Rules, label, "p99_ms", 1.0));
            cells.extend(of(&RULES[4..]));
            cells.push(self.ms(StatsRequest::Rules, label, "lease_ms", 1.0));
            table.push(label, cells);
        }
        table
    }

    /// The server's advice on its rules.
    fn advice(&self) -> Table {
        let mut table = Table::new("what to change", &[number("#"), text("")]);
        for label in self.model.labels(StatsRequest::Rules) {
            if let Some(advice) = self.model.text(StatsRequest::Rules, label, "advice") {
                let number = Cell::number(label.to_owned(), label.parse().ok());
                table.push(format!("advice {label}"), vec![number, Cell::text(advice)]);
            }
        }
        let top = self.model.group(StatsRequest::Rules).map(|group| &group.top);
        for (name, hint) in top.into_iter().flatten().filter(|(name, _)| name.starts_with("hint_")) {
            table.push(
                name.to_string(),
                vec![Cell::number("-".to_owned(), None), Cell::text(hint.to_string())],
            );
        }
        table
    }

    /// All lines of one rule. Lines that are not 0 come first.
    fn rule(&self, label: &str) -> Table {
        let pattern = self.model.text(StatsRequest::Rules, label, "match").unwrap_or("-");
        let columns = [text("line"), number("per s"), number("value")];
        let mut table = Table::new(format!("rule {label}: {pattern} (Esc: back)"), &columns)
            .or_say("there is no such rule");
        let lines = self.model.group(StatsRequest::Rules).and_then(|group| group.block(label));
        for (name, value) in lines.into_iter().flat_map(|block| &block.lines) {
            table.push(name.to_string(), self.line(StatsRequest::Rules, label, name, value));
        }
        table.rows.sort_by_key(|row| row.cells[2].text == "0");
        table
    }

    fn line(&self, ask: StatsRequest, label: &str, name: &str, value: &str) -> Vec<Cell> {
        let per_second = self.model.rate(ask, label, name).filter(|rate| *rate != 0.0);
        let per_second = Cell::number(per_second.map_or_else(String::new, |own| rate(Some(own))), per_second);
        vec![Cell::text(name), per_second, Cell::number(value.to_owned(), value.parse().ok())]
    }

    fn loaders(&self) -> Table {
        const GAUGES: [&str; 4] = ["workers", "busy", "max", "queued"];
        const COUNTERS: [&str; 6] = ["jobs", "values", "errors", "timeouts", "lost", "refused"];
        const MORE: [&str; 5] = ["starting", "running", "crashed", "killed", "reply_waits"];
        let mut columns = vec![text("loader")];
        columns.extend(GAUGES.map(number));
        columns.extend([number("run p50"), number("run p99"), number("wait p99")]);
        columns.extend(COUNTERS.map(number));
        columns.extend(MORE.map(number));
        columns.extend([number("bytes"), text("mode")]);
        let title = format!("loaders, jobs {}", self.counted(StatsRequest::Loaders));
        let mut table = Table::new(title, &columns).or_say(&self.nothing(StatsRequest::Loaders, "no loader"));
        for label in self.model.labels(StatsRequest::Loaders) {
            let mut cells = vec![Cell::text(label)];
            cells.extend(GAUGES.map(|name| self.gauge(StatsRequest::Loaders, label, name)));
            cells.extend(
                ["run_p50_us", "run_p99_us", "wait_p99_us"]
                    .map(|name| self.ms(StatsRequest::Loaders, label, name, 1000.0)),
            );
            cells.extend(COUNTERS.map(|name| self.count(StatsRequest::Loaders, label, &[name])));
            cells.extend(MORE.map(|name| self.gauge(StatsRequest::Loaders, label, name)));
            cells.push(self.bytes(StatsRequest::Loaders, label, "bytes"));
            cells.push(self.word(StatsRequest::Loaders, label, "mode"));
            table.push(label, cells);
            let is_missing = self.model.text(StatsRequest::Loaders, label, "template_missing") == Some("1");
            if let Some(row) = table.rows.last_mut() {
                row.is_bad = is_missing;
            }
        }
        table
    }

    fn methods(&self) -> Table {
        const COUNTERS: [&str; 4] = ["calls", "errors", "misses", "waited"];
        let mut columns = vec![text("method")];
        columns.extend(COUNTERS.map(number));
        columns.extend([number("mean"), number("longest"), number("bytes")]);
        let title = format!("methods that were called, calls {}", self.counted(StatsRequest::Objects));
        let mut table = Table::new(title, &columns).or_say(&self.nothing(StatsRequest::Objects, "no call"));
        for label in self.model.labels(StatsRequest::Objects).filter(|label| label.contains(':')) {
            let mut cells = vec![Cell::text(label)];
            cells.extend(COUNTERS.map(|name| self.count(StatsRequest::Objects, label, &[name])));
            cells.extend(
                ["time_avg_us", "time_max_us"]
                    .map(|name| self.ms(StatsRequest::Objects, label, name, 1000.0)),
            );
            cells.push(self.bytes(StatsRequest::Objects, label, "bytes"));
            table.push(label, cells);
        }
        table
    }

    fn types(&self) -> Table {
        let columns = [text("type"), number("objects"), number("bytes"), number("in trees")];
        let mut table = Table::new("types with objects", &columns);
        let has = |label: &&str| {
            self.model.number(StatsRequest::Objects, label, "items").is_some_and(|items| items > 0.0)
        };
        for label in self.model.labels(StatsRequest::Objects).filter(has) {
            let cells = vec![
                Cell::text(label),
                self.gauge(StatsRequest::Objects, label, "items"),
                self.bytes(StatsRequest::Objects, label, "bytes"),
                self.bytes(StatsRequest::Objects, label, "tree_bytes"),
            ];
            table.push(format!("type {label}"), cells);
        }
        table
    }

    fn keys(&self) -> Vec<Table> {
        let said = match (&self.model.unwatched, &self.model.hot) {
            (Some(why), _) => format!("requests cannot be watched: {why}"),
            (None, None) => "watching for a second ...".to_owned(),
            (None, Some(_)) => "no key is asked for more than others".to_owned(),
        };
        let Some(hot) = self.model.hot.as_ref().filter(|_| self.model.unwatched.is_none()) else {
            return vec![Table::new("hot keys", &[]).or_say(&said)];
        };
        let title = |what: &str| {
            let all = hot.seen + hot.skipped;
            format!(
                "{what} per second; 1 s of 4 is watched, {} of {all} requests were seen in the last",
                hot.seen
            )
        };
        let columns = |name| {
            [
                text(name),
                number("requests"),
                number("gets"),
                number("miss %"),
                number("stores"),
                number("bytes"),
                number("error"),
            ]
        };
        let table = |title: String, name, prefix: &str, keys: &[super::hot::HotKey]| {
            let mut table = Table::new(title, &columns(name)).or_say(&said);
            for key in keys {
                let misses = (key.gets > 0.0).then(|| key.misses / key.gets * 100.0);
                let of = |number: f64| Cell::number(rate(Some(number)), Some(number));
                let cells = vec![
                    Cell::text(key.key.as_str()),
                    of(key.requests),
                    of(key.gets),
                    Cell::number(
                        misses.map_or_else(|| "-".to_owned(), |misses| format!("{misses:.1}")),
                        misses,
                    ),
                    of(key.stores),
                    Cell::number(rate_of_bytes(Some(key.bytes)), Some(key.bytes)),
                    of(key.error),
                ];
                table.push(format!("{prefix}{}", key.key), cells);
            }
            table
        };
        let most = hot.shapes.len().min(8);
        vec![
            table(title("keys"), "key", "", &hot.keys),
            table("shapes of keys".to_owned(), "shape", "shape ", &hot.shapes[..most]),
        ]
    }

    fn slow(&self) -> Table {
        let columns = [text("shape"), number("took"), number("ended"), text("kind")];
        let nothing = if self.model.labels(StatsRequest::Rules).next().is_none() {
            "a slow log is kept with a rule file only (get @slow)"
        } else {
            "nothing was slow (--slow-log, --slow-calls), or control keys begin otherwise than with @"
        };
        let title = "slowest computations, loads and calls: the last 128 that were slow";
        let mut table = Table::new(title, &columns).or_say(nothing);
        for (at, slow) in self.model.slow.iter().enumerate() {
            let cells = vec![
                Cell::text(slow.shape.as_str()),
                Cell::number(millis(slow.ms), Some(slow.ms)),
                Cell::number(format!("{} ago", seconds((slow.ago_ms / 1000.0) as u64)), Some(-slow.ago_ms)),
                Cell::text(slow.kind.as_str()),
            ];
            table.push(format!("slow {at}"), cells);
        }
        table
    }

    fn leases(&self) -> Table {
        let columns =
            [text("key"), number("waiters"), number("age"), number("left"), text("kind"), text("holder")];
        let mut table = Table::new("being computed now", &columns);
        if let Some(said) = self.model.refused(StatsRequest::Leases) {
            table = table.or_say(&format!("stats leases: {said}"));
        }
        let lines = self.model.group(StatsRequest::Leases).map(|group| &group.top);
        for (key, line) in lines.into_iter().flatten() {
            let key = readable(key);
            // The holder may have several words.
            let of = |name: &str| {
                let begin = line.find(&format!("{name}="))? + name.len() + 1;
                let rest = &line[begin..];
                Some(
                    rest.split_once('=')
                        .map_or(rest, |(value, _)| value.rsplit_once(' ').map_or("", |(value, _)| value)),
                )
            };
            let ms = |name: &str| {
                let ms = of(name).and_then(|ms| ms.parse().ok());
                Cell::number(ms.map_or_else(|| "-".to_owned(), millis), ms)
            };
            let waiters = of("waiters").unwrap_or("-");
            let cells = vec![
                Cell::text(key.as_str()),
                Cell::number(waiters.to_owned(), waiters.parse().ok()),
                ms("age_ms"),
                ms("left_ms"),
                Cell::text(of("kind").unwrap_or("-")),
                Cell::text(of("holder").unwrap_or("-")),
            ];
            table.push(format!("lease {key}"), cells);
        }
        table.sort(SortOrder { column: 1, falls: true });
        table.rows.truncate(1000);
        table
    }

    fn uses(&self) -> Table {
        let columns = [text("memory"), number("bytes"), number("of -m")];
        let limit = self.model.number(StatsRequest::Stats, "", "limit_maxbytes").filter(|limit| *limit > 0.0);
        let used = memory_used(self.model).zip(limit).map(|(used, limit)| used / limit);
        let title = format!("memory by use: {} of -m", share(used));
        let mut table = Table::new(title, &columns);
        for (name, ask, line) in [
            ("limit (-m)", StatsRequest::Stats, "limit_maxbytes"),
            ("used, without rules", StatsRequest::Cattlegrid, "memory_used"),
            ("items and large values", StatsRequest::Stats, "bytes"),
            ("segments", StatsRequest::Cattlegrid, "segment_bytes"),
            ("  dead in segments", StatsRequest::Cattlegrid, "segment_dead_bytes"),
            ("large values", StatsRequest::Cattlegrid, "huge_bytes"),
            ("index", StatsRequest::Stats, "hash_bytes"),
            ("evicted keys remembered", StatsRequest::Cattlegrid, "ghost_bytes"),
            ("for rules", StatsRequest::Cattlegrid, "memory_for_rules"),
            ("tags", StatsRequest::Tags, "memory_bytes"),
            ("uploads", StatsRequest::Cattlegrid, "partial_bytes"),
            ("replies not taken", StatsRequest::Cattlegrid, "unsent_bytes"),
            ("receive buffers", StatsRequest::Stats, "read_buf_bytes"),
        ] {
            let Some(bytes) = self.model.number(ask, "", line) else { continue };
            let part = limit.map(|limit| bytes / limit);
            let cells = vec![Cell::text(name), self.bytes(ask, "", line), Cell::number(share(part), part)];
            table.push(name, cells);
        }
        table
    }

    fn shares(&self) -> Table {
        let columns = [
            text("share"),
            number("items"),
            number("bytes"),
            number("at least"),
            number("at most"),
            number("evicted"),
        ];
        let mut table =
            Table::new(format!("shares, evictions {}", self.counted(StatsRequest::Shares)), &columns);
        for label in self.model.labels(StatsRequest::Shares) {
            let prefix = self.model.text(StatsRequest::Shares, label, "prefix").unwrap_or("(no share)");
            let mut cells = vec![Cell::text(prefix), self.gauge(StatsRequest::Shares, label, "items")];
            cells.extend(
                ["bytes", "at_least_bytes", "at_most_bytes"]
                    .map(|name| self.bytes(StatsRequest::Shares, label, name)),
            );
            cells.push(self.count(StatsRequest::Shares, label, &["evictions"]));
            table.push(format!("share {label}"), cells);
        }
        table
    }

    /// The slab classes of memcached. Cattlegrid has one class only, which tells nothing.
    fn slabs(&self) -> Table {
        let columns = [
            number("class"),
            number("chunk"),
            number("pages"),
            number("items"),
            number("free"),
            number("evicted"),
            number("age"),
            number("no memory"),
        ];
        let mut table =
            Table::new(format!("slab classes, evictions {}", self.counted(StatsRequest::Items)), &columns);
        if self.model.is_cattlegrid() {
            return table;
        }
        for label in self.model.labels(StatsRequest::Slabs) {
            let items = format!("items:{label}");
            let age = self.model.number(StatsRequest::Items, &items, "age");
            let mut cells = vec![Cell::number(label.to_owned(), label.parse().ok())];
            cells.push(self.bytes(StatsRequest::Slabs, label, "chunk_size"));
            cells.extend(
                ["total_pages", "used_chunks", "free_chunks"]
                    .map(|name| self.gauge(StatsRequest::Slabs, label, name)),
            );
            cells.push(self.count(StatsRequest::Items, &items, &["evicted"]));
            cells.push(Cell::number(age.map_or_else(|| "-".to_owned(), |age| seconds(age as u64)), age));
            cells.push(self.count(StatsRequest::Items, &items, &["outofmemory"]));
            table.push(format!("class {label}"), cells);
        }
        table
    }

    fn followers(&self) -> Table {
        let columns = [
            text("log"),
            text("state"),
            number("lag"),
            number("longest"),
            number("bumps"),
            number("flushes"),
            number("waiting"),
            number("behind"),
            text("what is wrong"),
        ];
        let title = format!("followed logs, bumps {}", self.counted(StatsRequest::Follow));
        let mut table =
            Table::new(title, &columns).or_say(&self.nothing(StatsRequest::Follow, "no log is followed"));
        for label in self.model.labels(StatsRequest::Follow) {
            let wrong = ["lost", "missing"]
                .iter()
                .find_map(|name| self.model.text(StatsRequest::Follow, label, name));
            let mut cells = vec![Cell::text(label), self.word(StatsRequest::Follow, label, "state")];
            cells
                .extend(["lag_ms", "lag_ms_max"].map(|name| self.ms(StatsRequest::Follow, label, name, 1.0)));
            cells.extend(["bumps", "flushes"].map(|name| self.count(StatsRequest::Follow, label, &[name])));
            cells.push(self.gauge(StatsRequest::Follow, label, "waiting"));
            cells.push(self.ms(StatsRequest::Follow, label, "behind_s", 0.001));
            cells.push(Cell::text(wrong.unwrap_or_default()));
            table.push(label, cells);
            let is_behind = self.model.text(StatsRequest::Follow, label, "behind") == Some("1");
            if let Some(row) = table.rows.last_mut() {
                row.is_bad = is_behind;
            }
        }
        table
    }

    fn nodes(&self) -> Table {
        const NAMES: [&str; 6] = ["name", "address", "state", "applied", "lag_ms", "version"];
        let columns: Vec<Column> = NAMES.map(text).to_vec();
        let mut table = Table::new("nodes of the fleet", &columns);
        for node in &self.model.nodes {
            let of = |name: &str| node.get(name).map_or("-", String::as_str);
            table.push(format!("node {}", of("name")), NAMES.map(|name| Cell::text(of(name))).to_vec());
        }
        table
    }

    fn tags(&self) -> Table {
        let mut table = Table::new("tags", &[text("line"), number("per s"), number("value")]);
        let lines = self.model.group(StatsRequest::Tags).map(|group| &group.top);
        for (name, value) in lines.into_iter().flatten() {
            table.push(format!("tags {name}"), self.line(StatsRequest::Tags, "", name, value));
        }
        table
    }

    fn times(&self) -> Table {
        let columns = [
            text("family"),
            number("sampled"),
            number("mean"),
            number("p50"),
            number("p90"),
            number("p99"),
            number("p99.9"),
            number("longest"),
        ];
        let title = "time in the server since start, upper bounds; one request in 64 is timed";
        let mut table = Table::new(title, &columns)
            .or_say(&self.nothing(StatsRequest::Latency, "no request was sampled"));
        for block in self.model.group(StatsRequest::Latency).into_iter().flat_map(|group| &group.blocks) {
            let mut bounds: Vec<(f64, f64)> = Vec::new();
            for (name, count) in &block.lines {
                let most =
                    name.strip_prefix("samples_to_").and_then(|most| most.strip_suffix("us")?.parse().ok());
                let most = if &**name == "samples_longer" { Some(f64::INFINITY) } else { most };
                if let Some((most, count)) = most.zip(count.parse().ok()) {
                    bounds.push((most, count));
                }
            }
            bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let all: f64 = bounds.iter().map(|(_, count)| count).sum();
            let sum =
                self.model.number(StatsRequest::Latency, &block.label, "samples_us").filter(|_| all > 0.0);
            let mean = sum.map(|sum| sum / all / 1000.0);
            let cell = |ms: Option<f64>| {
                let text = match ms {
                    None => "-".to_owned(),
                    Some(ms) if ms.is_infinite() => "longer".to_owned(),
                    Some(ms) => millis(ms),
                };
                Cell::number(text, ms)
            };
            let mut cells = vec![
                Cell::text(&*block.label),
                Cell::number(self.shown.hand.number(all), Some(all)),
                cell(mean),
            ];
            cells.extend(
                [0.5, 0.9, 0.99, 0.999, 1.0]
                    .map(|part| cell(percentile(&bounds, part).map(|us| us / 1000.0))),
            );
            table.push(&*block.label, cells);
        }
        table
    }

    /// Every line of the statistics that are always asked for.
    fn all(&self) -> Table {
        let columns = [text("line"), number("per s"), number("value"), text("of")];
        let mut table = Table::new("all lines", &columns).or_say("not asked yet");
        for ask in [StatsRequest::Stats, StatsRequest::Cattlegrid, StatsRequest::Tags] {
            for (name, value) in self.model.group(ask).into_iter().flat_map(|group| &group.top) {
                let mut cells = self.line(ask, "", name, value);
                cells.push(Cell::text(ask.command()));
                table.push(format!("{}:{name}", ask.command()), cells);
            }
        }
        table
    }
}

/// A key as it was sent, if it is readable as a whole: `stats leases` writes bytes that names do not have as
/// `%` and two digits.
fn readable(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| *first == b'%');
        let escaped =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    let text = String::from_utf8(bytes).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    text.unwrap_or_else(|| key.to_owned())
}

/// The first bound within which this share of the values is.
fn percentile(bounds: &[(f64, f64)], part: f64) -> Option<f64> {
    let all: f64 = bounds.iter().map(|(_, count)| count).sum();
    let mut sum = 0.0;
    bounds.iter().filter(|(_, count)| *count > 0.0).find_map(|(most, count)| {
        sum += count;
        (sum >= all * part).then_some(*most)
    })
}

/// The pages as text for people and scripts: all pages, or one, with totals as whole numbers.
pub(super) fn printed(model: &Model, view: Option<View>) -> String {
    let shown = CounterView { hand: NumberStyle { exact: true, ascii: true }, totals: true };
    let views: Vec<View> = view
        .map_or_else(|| View::ALL.into_iter().filter(|view| *view != View::All).collect(), |view| vec![view]);
    let mut text = format!("{}\n", super::view::title(model));
    for view in views {
        if view == View::Keys && model.hot.is_none() && model.unwatched.is_none() {
            continue;
        }
        for mut table in page(model, view, None, shown) {
            if let Some(sort) = view.sort() {
                table.sort(sort);
            }
            let lines = table.lines(usize::MAX >> 1, None, shown.hand).0;
            if !lines.is_empty() {
                text.push('\n');
            }
            for line in lines {
                text.push_str(&line.text);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_they_were_sent_unless_they_would_hurt() {
        for (key, expected) in [
            ("page%3A17", "page:17"),
            ("a%1Bb", "a%1Bb"),
            ("100%", "100%"),
            ("%C3%BC", "%C3%BC"),
            ("a%20b", "a%20b"),
        ] {
            assert_eq!(readable(key), expected);
        }
    }

    #[test]
    fn percentiles_are_the_bound_that_they_are_within() {
        let bounds = [(10.0, 50.0), (20.0, 49.0), (40.0, 0.0), (f64::INFINITY, 1.0)];
        let of = |part| percentile(&bounds, part);
        assert_eq!(
            [of(0.5), of(0.51), of(0.99), of(1.0)],
            [Some(10.0), Some(20.0), Some(20.0), Some(f64::INFINITY)]
        );
        assert_eq!(percentile(&[], 0.5), None);
    }
}
