//! Random calls of objects against plain models, on a simulated clock: with long calls that are read step by
//! step between others, calls of a host's methods with others in the middle of them, times to live, bumps,
//! flushes, eviction, types switched off and on, and clients that go away.
//!
//! Every request is answered once, and by what its object was at that moment. In histories with little memory
//! an object may have been evicted at any time, and then begins anew: its state is otherwise never anything
//! but what the calls have made it. In the end nothing is busy, nothing waits, and nothing is counted.
//!
//! `OBJECTS_SEED=n` runs one history.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};

use cattlegrid_engine::Cursor;
use cattlegrid_engine::rules::{Pattern, Rule, Rules, TagTemplate};
use cattlegrid_herd::Policy;
use cattlegrid_objects::Eviction;

use crate::objects::with_own;
use crate::script_host::TestHost;
use crate::world::{World, config};

const HISTORIES: u64 = 60;
const STEPS: u64 = 700;
const CLIENTS: usize = 6;
/// Objects of each type.
const KEYS: u64 = 3;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.0;
        n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ n >> 31
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Counter(i64),
    Quota { limit: u64, used: u64 },
    Set(BTreeSet<String>),
    Board(BTreeMap<String, i64>),
}

/// An object, and the second in which it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    state: State,
    until: Option<u64>,
}

/// A reply, whatever its form.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reply {
    Value(String),
    Miss,
    Error(String),
}

/// A call: its object, its method and its arguments.
#[derive(Debug, Clone)]
struct Call {
    object: Name,
    method: &'static str,
    arguments: Vec<String>,
}

/// Type and number.
type Name = (&'static str, u64);

impl Call {
    /// What it answers, and what it makes of its object. `other`: the other set that it reads.
    fn run(&self, found: Option<&Model>, other: Option<&Model>, ms: u64) -> (Reply, Option<Model>) {
        let said = |text: &str| Reply::Value(text.to_owned());
        let number = |place: usize| self.arguments.get(place).map_or(1, |text| text.parse::<i64>().unwrap());
        let mut after = found.cloned();
        let fresh = |state| Some(Model { state, until: None });
        match (self.object.0, self.method) {
            (_, "exists") => return (said(if found.is_some() { "EXISTS" } else { "NOT_FOUND" }), after),
            (_, "drop") => return (said(if found.is_some() { "DELETED" } else { "NOT_FOUND" }), None),
            ("quota", "new") => {
                return (said("CREATED"), fresh(State::Quota { limit: number(0).cast_unsigned(), used: 0 }));
            }
            ("set", "new") => return (said("CREATED"), fresh(State::Set(BTreeSet::new()))),
            ("board", "incr") if after.is_none() => after = fresh(State::Board(BTreeMap::new())),
            ("tally", "new") => return (said("CREATED"), fresh(State::Counter(number(0)))),
            ("counter" | "tally", "add") if after.is_none() => after = fresh(State::Counter(0)),
            _ => {}
        }
        let Some(model) = &mut after else { return (Reply::Miss, None) };
        if self.method == "ttl" {
            // Rounded up to a second.
            model.until = (number(0) > 0).then(|| (ms + number(0).cast_unsigned() * 1000).div_ceil(1000));
            let text = if number(0) > 0 { self.arguments[0].clone() } else { "-1".to_owned() };
            return (said(&text), after);
        }
        let reply = match (&mut model.state, self.method) {
            (State::Counter(value), "add") => {
                *value += number(0);
                value.to_string()
            }
            (State::Counter(value), "get") => value.to_string(),
            (State::Quota { limit, used }, "addandcheck") => {
                if *used + number(0).cast_unsigned() <= *limit {
                    *used += number(0).cast_unsigned();
                    "QUOTA_OK".to_owned()
                } else {
                    "QUOTA_EXCEEDED".to_owned()
                }
            }
            (State::Quota { used, .. }, "reset") => {
                *used = 0;
                "QUOTA_OK".to_owned()
            }
            (State::Set(members), "add") => {
                let new = self.arguments.iter().filter(|one| members.insert((*one).clone()));
                new.count().to_string()
            }
            (State::Set(members), "remove") => {
                self.arguments.iter().filter(|one| members.remove(*one)).count().to_string()
            }
            (State::Set(members), "count") => members.len().to_string(),
            (State::Set(members), "getall") => lines(members.iter()),
            (State::Set(members), method) => {
                let none = BTreeSet::new();
                let others = match other {
                    Some(Model { state: State::Set(others), .. }) => others,
                    _ => &none,
                };
                match method {
                    "union" => lines(members.union(others)),
                    "diff" => lines(members.difference(others)),
                    _ => lines(members.intersection(others)),
                }
            }
            (State::Board(scores), "incr") => {
                let score = scores.entry(self.arguments[0].clone()).or_default();
                *score += number(1);
                score.to_string()
            }
            (State::Board(scores), "count") => scores.len().to_string(),
            (State::Board(scores), "score") => match scores.get(&self.arguments[0]) {
                Some(score) => score.to_string(),
                None => return (Reply::Miss, after),
            },
            (state, method) => unreachable!("{method} of {state:?}"),
        };
        (Reply::Value(reply), after)
    }

    /// It reads its objects, in steps if they are large.
    fn reads(&self) -> bool {
        ["getall", "union", "diff", "intersection"].contains(&self.method)
    }

    fn other(&self) -> Option<Name> {
        ["union", "diff", "intersection"]
            .contains(&self.method)
            .then(|| ("set", self.arguments[0][1..].parse().unwrap()))
    }
}

fn lines<'a>(members: impl Iterator<Item = &'a String>) -> String {
    members.map(|member| member.clone() + "|").collect()
}

/// A request that was sent.
struct Asked {
    call: Call,
    line: String,
    /// States that its objects had since.
    seen: BTreeMap<Name, Vec<Option<Model>>>,
}

struct Client {
    number: u64,
    asked: Option<Asked>,
}

#[expect(clippy::struct_excessive_bools, reason = "switches of a history")]
struct Sim {
    w: World,
    /// Of the type `tally`.
    host: Arc<TestHost>,
    rng: Rng,
    clients: Vec<Client>,
    objects: BTreeMap<Name, Model>,
    /// What objects may be besides: a reply does not tell whether they were evicted before.
    besides: BTreeMap<Name, Vec<Model>>,
    /// Objects may be evicted.
    lossy: bool,
    /// Quotas are never evicted.
    pinned: bool,
    /// Sets are switched off.
    is_off: bool,
    flush_at: Option<u64>,
    traced: bool,
    counts: BTreeMap<&'static str, u64>,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let lossy = rng.one_in(3);
        let pinned = rng.one_in(2);
        let memory = if lossy { 2 << 20 } else { 64 << 20 };
        let mut w = World::with(&[], &config(), memory, 1);
        let pattern = Pattern::parse("set::{k}").unwrap();
        let tags = vec![TagTemplate::parse("of:{k}", Some(&pattern)).unwrap()];
        let policy = Policy { leases: false, hold_ms: 0, ..Policy::default() };
        let rule = Rule { number: 1, pattern, policy, tags, negative_ttl_s: 0, loading: None, prefix: None };
        w.set_rules_to(Rules::new(vec![rule], Vec::new()));
        w.holds_calls = true;
        let clients = (0..CLIENTS).map(|_| Client { number: w.connect(), asked: None }).collect();
        let traced = std::env::var_os("OBJECTS_SEED").is_some();
        let sim = Self {
            w,
            host: TestHost::new(1),
            rng,
            clients,
            objects: BTreeMap::new(),
            besides: BTreeMap::new(),
            lossy,
            pinned,
            is_off: false,
            flush_at: None,
            traced,
            counts: BTreeMap::new(),
        };
        sim.switch();
        sim
    }

    /// Puts the types in force.
    fn switch(&self) {
        let registry = self.host.registry(|all| {
            if self.is_off {
                all.types.retain(|own| own.name != "set");
            }
            if self.pinned {
                with_own(all, "quota", |own| own.evict = Eviction::Never);
            }
        });
        self.w.engine.set_objects(Some(registry));
        while self.w.engine.tick(self.w.now()) {}
    }

    fn second(&self) -> u64 {
        self.w.ms / 1000
    }

    fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
        if self.traced {
            eprintln!("{:>7} {what}", self.w.ms);
        }
    }

    /// Objects that requests which wait may have seen until now go away.
    fn lose(&mut self, mut goes: impl FnMut(&Name, &Model) -> bool) {
        let gone: Vec<Name> =
            self.objects.iter().filter(|(name, model)| goes(name, model)).map(|(name, _)| *name).collect();
        for name in gone {
            self.replace(name, None);
        }
        for (name, besides) in &mut self.besides {
            besides.retain(|model| !goes(name, model));
        }
    }

    fn replace(&mut self, name: Name, after: Option<Model>) {
        let before = match after {
            Some(after) => self.objects.insert(name, after),
            None => self.objects.remove(&name),
        };
        for asked in self.clients.iter_mut().filter_map(|client| client.asked.as_mut()) {
            if asked.call.object == name || asked.call.other() == Some(name) {
                asked.seen.entry(name).or_default().push(before.clone());
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0..3 => {
                let ms = self.rng.of(&[1, 100, 900, 2500]);
                self.pass(ms);
            }
            3 => self.disturb(),
            4 => self.go_away(),
            5..18 => {
                let many = 1 + self.rng.below(4);
                (0..many).for_each(|_| {
                    self.w.go_on();
                    // In the order in which they have ended.
                    self.receive();
                });
            }
            _ => self.ask(),
        }
        self.receive();
        self.w.check();
    }

    fn pass(&mut self, ms: u64) {
        let now = self.w.ms + ms;
        let (second, begun) = (now / 1000, self.second());
        // A flush that was put off ends what was there before it.
        if self.flush_at.is_some_and(|at| at <= second) {
            self.flush_at = None;
            self.lose(|_, _| true);
        }
        self.w.pass(ms);
        if second > begun {
            self.lose(|_, model| model.until.is_some_and(|until| until <= second));
        }
    }

    fn disturb(&mut self) {
        match self.rng.below(12) {
            0 if self.rng.one_in(3) => {
                self.note("flush");
                self.w.flush();
                self.flush_at = None;
                self.lose(|_, _| true);
            }
            1 if self.flush_at.is_none() => {
                self.note("flush later");
                let second = self.second();
                self.flush_at = Some(second + 2);
                self.w.engine.shared().flush(second as u32 + 2, second as u32);
            }
            2..5 => {
                self.note("bump");
                let n = self.rng.below(KEYS);
                let line = self.rng.of(&["md of:sN G|", "md of:sN G I|", "delete @tag:of:sN|"]);
                let other = self.w.connect();
                self.w.send(other, &line.replace('N', &n.to_string()));
                self.w.close(other, true);
                self.lose(|name, _| *name == ("set", n));
            }
            5..7 => {
                self.note(if self.is_off { "types on" } else { "types off" });
                self.is_off = !self.is_off;
                self.switch();
                self.lose(|name, _| name.0 == "set");
            }
            7 if self.lossy => {
                self.note("eviction");
                let other = self.w.connect();
                let fat = "x".repeat(3000);
                for n in 0..800 {
                    self.w.send(other, &format!("set junk:{n} 0 0 3000 noreply|{fat}|"));
                }
                self.w.close(other, true);
            }
            _ => {}
        }
    }

    /// A client whose call changes nothing closes its connection.
    fn go_away(&mut self) {
        let at = self.rng.below(CLIENTS as u64) as usize;
        if self.clients[at].asked.as_ref().is_some_and(|asked| !asked.call.reads()) {
            return;
        }
        self.note(if self.clients[at].asked.is_some() { "close while a call runs" } else { "close" });
        let orderly = self.rng.one_in(2);
        self.w.close(self.clients[at].number, orderly);
        self.clients[at] = Client { number: self.w.connect(), asked: None };
    }

    fn ask(&mut self) {
        let at = self.rng.below(CLIENTS as u64) as usize;
        if self.clients[at].asked.is_some() {
            return;
        }
        let call = self.draw();
        if self.is_off && call.object.0 == "set" {
            return;
        }
        let (kind, n) = call.object;
        let key = format!("{}{n}", &kind[..1]);
        let arguments = call.arguments.concat_with(':');
        let line = match self.rng.below(4) {
            // A key has up to 250 bytes.
            _ if arguments.len() > 200 => format!("mg {kind}::{key} v A{}{arguments}|", call.method),
            0 => format!("mg {kind}:{}:{key}{arguments} v|", call.method),
            1 => format!("mg {kind}::{key} v A{}{arguments}|", call.method),
            2 if call.method == "drop" => format!("delete {kind}::{key}|"),
            2 if !call.arguments.is_empty() => {
                let (last, others) = call.arguments.split_last().unwrap();
                let others = others.to_vec().concat_with(':');
                format!("ms {kind}::{key} {} v A{}{others}|{last}|", last.len(), call.method)
            }
            _ => format!("get {kind}:{}:{key}{arguments}|", call.method),
        };
        if self.traced {
            eprintln!("{:>7} {at} > {}", self.w.ms, &line[..line.len().min(80)]);
        }
        *self.counts.entry(call.method).or_default() += 1;
        let between = (call.object.0 == "tally" && call.method == "add" && self.rng.one_in(2))
            .then(|| self.call_between(n, &key));
        self.clients[at].asked = Some(Asked { call, line: line.clone(), seen: BTreeMap::new() });
        self.w.send(self.clients[at].number, &line);
        if let Some((between, replies)) = between {
            // The object was busy, and the method has not run.
            self.host.nothing_between();
            if let Ok(sent) = replies.try_recv() {
                *self.counts.entry("a call in the middle of another").or_default() += 1;
                let reply = read(&between.line, &sent);
                let has_lost = self.w.waiting(self.clients[at].number) > 0;
                assert!(has_lost || self.lossy, "the other has changed its object");
                self.judge(&between, &reply);
            }
        }
        if self.w.waiting(self.clients[at].number) > 0 {
            *self.counts.entry("a call waits").or_default() += 1;
        }
    }

    /// A call of another connection on the same tally, in the middle of the next call, and its reply.
    fn call_between(&mut self, n: u64, key: &str) -> (Asked, mpsc::Receiver<String>) {
        let call = Call { object: ("tally", n), method: "add", arguments: vec!["1000".to_owned()] };
        let line = format!("mg tally:add:{key}:1000 v|");
        let mut other = self.w.beside(1);
        other.ms = self.w.ms;
        let (sender, replies) = mpsc::channel();
        let asked = Asked { call, line: line.clone(), seen: BTreeMap::new() };
        self.host.between(move || {
            let client = other.connect();
            sender.send(other.ask(client, &line)).unwrap();
        });
        (asked, replies)
    }

    fn draw(&mut self) -> Call {
        let kind = self.rng.of(&["counter", "quota", "set", "set", "set", "board", "tally", "tally"]);
        let n = self.rng.below(KEYS);
        let rng = &mut self.rng;
        let mut small = |most: u64| vec![(1 + rng.below(most)).to_string()];
        let (method, arguments) = match (kind, small(12)[0].as_str()) {
            (_, "1") => (
                "ttl",
                vec![small(4)[0].parse::<u64>().unwrap() % 4 * 2]
                    .into_iter()
                    .map(|seconds| seconds.to_string())
                    .collect(),
            ),
            (_, "2") => ("exists", Vec::new()),
            (_, "3") if small(4)[0] == "1" => ("drop", Vec::new()),
            ("counter", _) | ("tally", "4" | "5" | "6" | "7" | "8") => ("add", small(100)),
            ("tally", "9") => ("new", small(100)),
            ("tally", _) => ("get", Vec::new()),
            ("quota", "4") => ("new", vec![small(50).remove(0), "day".to_owned()]),
            ("quota", "5") => ("reset", Vec::new()),
            ("quota", _) => ("addandcheck", small(5)),
            ("set", "4") if small(3)[0] == "1" => ("new", Vec::new()),
            ("set", "5" | "6") => ("getall", Vec::new()),
            ("set", "7") => ("count", Vec::new()),
            ("set", "8") => ("remove", vec![format!("m{}", small(1600)[0])]),
            ("set", "9" | "10") => {
                let method = ["union", "diff", "intersection"][small(3)[0].parse::<usize>().unwrap() - 1];
                (method, vec![format!("s{}", small(KEYS)[0].parse::<u64>().unwrap() - 1)])
            }
            // A thousand of them take several steps to read.
            ("set", _) => {
                let from: u64 = small(1600)[0].parse().unwrap();
                (
                    "add",
                    (from..from + 24)
                        .map(|n| format!("m{n}") + &"x".repeat(if n % 2 == 0 { 90 } else { 0 }))
                        .collect(),
                )
            }
            (_, "4" | "5") => ("count", Vec::new()),
            (_, "6") => ("score", vec![format!("p{}", small(300)[0])]),
            (_, _) => ("incr", vec![format!("p{}", small(300)[0]), small(9).remove(0)]),
        };
        Call { object: (kind, n), method, arguments }
    }

    fn receive(&mut self) {
        for at in 0..CLIENTS {
            let sent = self.w.replies(self.clients[at].number);
            if sent.is_empty() {
                assert_eq!(
                    self.w.waiting(self.clients[at].number),
                    usize::from(self.clients[at].asked.is_some()),
                    "it waits, or is answered"
                );
                continue;
            }
            let asked = self.clients[at].asked.take().expect("nothing was asked");
            if self.traced {
                eprintln!("{:>7} {at} < {}", self.w.ms, &sent[..sent.len().min(80)]);
            }
            self.judge(&asked, &read(&asked.line, &sent));
        }
    }

    /// Whether a reply is that of the model, or of an object that was evicted.
    fn judge(&mut self, asked: &Asked, reply: &Reply) {
        let (call, name, ms) = (&asked.call, asked.call.object, self.w.ms);
        if let Reply::Error(text) = reply {
            assert!(self.lossy && text == "SERVER_ERROR out of memory storing object", "{text}");
            *self.counts.entry("no room").or_default() += 1;
            return;
        }
        // Its type was switched off while it waited.
        if self.is_off && name.0 == "set" && *reply == Reply::Miss {
            return;
        }
        let found = self.objects.get(&name).cloned();
        let may_be_evicted = self.lossy && !(self.pinned && name.0 == "quota");
        let mut states = vec![found.clone()];
        states.extend(self.besides.get(&name).into_iter().flatten().cloned().map(Some));
        if may_be_evicted {
            states.push(None);
        }
        let mut others = vec![call.other().and_then(|other| self.objects.get(&other).cloned())];
        if call.other().is_some() && self.lossy {
            others.push(None);
            let besides = call.other().and_then(|other| self.besides.get(&other));
            others.extend(besides.into_iter().flatten().cloned().map(Some));
        }
        // What was read before the object went away.
        if call.reads() {
            states.extend(asked.seen.get(&name).into_iter().flatten().cloned());
            let seen = call.other().and_then(|other| asked.seen.get(&other));
            others.extend(seen.into_iter().flatten().cloned());
        }
        let mut possible = Vec::new();
        for state in &states {
            for other in &others {
                let other = if call.other() == Some(name) { state } else { other };
                let (expected, after) = call.run(state.as_ref(), other.as_ref(), ms);
                if expected == *reply && !possible.contains(&after) {
                    possible.push(after);
                }
            }
        }
        if !possible.is_empty() {
            if !call.reads() {
                let mut possible = possible.into_iter();
                let after = possible.next().flatten();
                if after != found {
                    self.replace(name, after);
                }
                // That it is absent is possible in any case.
                self.besides.insert(name, possible.flatten().collect());
            }
            return;
        }
        let short = |text: String| text.chars().take(200).collect::<String>();
        let (expected, _) = call.run(found.as_ref(), others[0].as_ref(), ms);
        panic!(
            "{} to {}, not {}",
            short(format!("{reply:?}")),
            short(asked.line.clone()),
            short(format!("{expected:?}"))
        );
    }

    /// Number of objects in the store.
    fn alive(&self) -> usize {
        let (mut count, mut cursor) = (0, Some(Cursor::default()));
        while let Some(from) = cursor {
            cursor = self.w.engine.list(from, 64, |item| count += usize::from(item.is_object()));
        }
        count
    }

    fn end(mut self) -> BTreeMap<&'static str, u64> {
        while self.w.go_on() {
            self.receive();
        }
        assert!(self.clients.iter().all(|client| client.asked.is_none()), "a request is not answered");
        assert!(self.w.engine.is_quiet());
        assert_eq!(self.w.engine.delivered_bytes(), 0);
        self.w.engine.verify();
        if !self.lossy {
            assert_eq!(self.alive(), self.objects.len(), "objects that calls have not made, or lost ones");
        }
        let client = self.w.connect();
        for kind in ["counter", "quota", "set", "board", "tally"] {
            for n in 0..KEYS {
                self.w.ask(client, &format!("get {kind}:drop:{}{n}|", &kind[..1]));
            }
        }
        self.w.pass(20_000);
        let usage = self.w.engine.usage().0;
        let left = (usage.objects, usage.object_bytes, usage.tree_bytes, usage.pinned_bytes);
        assert_eq!(left, (0, 0, 0, 0));
        self.counts
    }
}

trait ConcatWith {
    fn concat_with(&self, colon: char) -> String;
}

impl ConcatWith for Vec<String> {
    fn concat_with(&self, colon: char) -> String {
        self.iter().flat_map(|one| [colon.to_string(), one.clone()]).collect()
    }
}

/// Reads a reply in the form of its command.
fn read(line: &str, sent: &str) -> Reply {
    if sent.starts_with("SERVER_ERROR") || sent.starts_with("CLIENT_ERROR") {
        return Reply::Error(sent.trim_end_matches('|').to_owned());
    }
    if line.starts_with("delete ") {
        return Reply::Value(sent.trim_end_matches('|').to_owned());
    }
    if ["END|", "EN|", "NF|"].contains(&sent) {
        return Reply::Miss;
    }
    let (head, rest) = sent.split_once('|').unwrap();
    let rest = if head.starts_with("VALUE ") { rest.strip_suffix("END|").unwrap() } else { rest };
    let value = rest.strip_suffix('|').unwrap();
    let len: usize = head.split(' ').next_back().unwrap().parse().unwrap();
    assert_eq!(len, value.len() + value.matches('|').count(), "{head}");
    Reply::Value(value.to_owned())
}

#[test]
fn objects_are_what_their_calls_have_made_them() {
    let one = std::env::var("OBJECTS_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in one.map_or(0..HISTORIES, |one| one..one + 1) {
        let run = std::panic::catch_unwind(|| {
            let mut sim = Sim::new(seed);
            for step in 0..STEPS {
                sim.step();
                if step % 64 == 0 {
                    sim.w.engine.verify();
                }
            }
            sim.end()
        });
        let Ok(some) = run else { panic!("OBJECTS_SEED={seed}") };
        for (what, count) in some {
            *counts.entry(what).or_default() += count;
        }
    }
    eprintln!("{counts:?}");
    for what in [
        "a call in the middle of another",
        "a call waits",
        "addandcheck",
        "bump",
        "close while a call runs",
        "eviction",
        "flush",
        "flush later",
        "types off",
        "types on",
        "union",
    ] {
        assert!(one.is_some() || counts.get(what).is_some_and(|count| *count > 0), "never: {what}");
    }
}
