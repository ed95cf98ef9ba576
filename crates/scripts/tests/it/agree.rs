//! The types of `examples/objects/luau` answer as the shipped types of the same names: the same replies, byte for byte, to
//! any sequence of calls, errors included. Of a wrong number of arguments only the method is compared: a source's parameters
//! have names of their own.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::{
    Arguments, Host as _, NoWorld, Object, ObjectOutcome, ObjectState, Registry, ScriptCall, ScriptMethodId,
    ScriptOutcome, Settings, StateChange, StateView, Zone,
};
use cattlegrid_scripts::{Limits, Scripts, Sources};
use cattlegrid_store::{Memory, Tree};
use jiff::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;

/// 2026-01-31T22:00:00Z: hours, a day and a month end soon.
const START_MS: u64 = 1_769_896_800_000;

/// No test of a machine that is busy fails by its time.
fn unhurried() -> Limits {
    Limits { time: Duration::from_secs(60), ..Limits::default() }
}

/// What a call answers; an error of the number of arguments without the names of the parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Value(String),
    Miss,
    Error(String),
}

impl Answer {
    fn error(line: &str) -> Self {
        let end = line.find(": takes ").map_or(line.len(), |at| at + ": takes".len());
        Self::Error(line[..end].to_owned())
    }
}

/// A call of a type: `method`, the object's key, arguments; and how far the clock goes before it.
#[derive(Debug, Clone)]
struct Step {
    method: &'static str,
    key: &'static str,
    arguments: Vec<String>,
    moves_ms: i64,
}

enum Own {
    Bytes(Vec<u8>),
    Tree(Box<Tree>),
}

/// Objects of a shipped type.
struct Shipped {
    registry: Registry,
    memory: Arc<Memory>,
    objects: HashMap<&'static str, Own>,
}

impl Shipped {
    fn new(zone: &str) -> Self {
        let settings = Settings { timezone: zone.to_owned(), ..Settings::default() };
        let registry = Registry::new(settings).unwrap();
        Self { registry, memory: Memory::new(1 << 22).unwrap(), objects: HashMap::new() }
    }

    fn call(&mut self, type_name: &str, step: &Step, now_ms: u64) -> Answer {
        let type_id = self.registry.types().find(|own| own.name == type_name).unwrap().id;
        let method = self.registry.method_of(type_id, step.method.as_bytes()).unwrap();
        let (mut new, mut out) = (Vec::new(), Vec::new());
        let state = match self.objects.get_mut(step.key) {
            None => ObjectState::Absent,
            Some(Own::Bytes(bytes)) => ObjectState::Bytes(bytes),
            Some(Own::Tree(tree)) => ObjectState::Tree(tree),
        };
        let object = Object::new(step.key.as_bytes(), state, &mut new, &self.memory, None);
        let arguments = Arguments::of(step.arguments.iter().map(String::as_bytes));
        let done = self.registry.call(method, object, &arguments, now_ms, 7, &mut out);
        match done.change {
            StateChange::None | StateChange::Tree => {}
            StateChange::Bytes => drop(self.objects.insert(step.key, Own::Bytes(new))),
            StateChange::NewTree(tree) => drop(self.objects.insert(step.key, Own::Tree(tree))),
            StateChange::Dropped => drop(self.objects.remove(step.key)),
        }
        match done.outcome {
            ObjectOutcome::Value { .. } => Answer::Value(String::from_utf8(out).unwrap()),
            ObjectOutcome::Miss => Answer::Miss,
            ObjectOutcome::Error(line) => Answer::error(&line),
            ObjectOutcome::NoRoom(_) => panic!("there is room"),
            ObjectOutcome::List { mut listing, .. } => {
                let keys: Vec<Vec<u8>> = listing.keys().map(<[u8]>::to_vec).collect();
                while let Some(wanted) = listing.wants() {
                    let view = match self.objects.get(std::str::from_utf8(&keys[wanted]).unwrap()) {
                        None => StateView::Absent,
                        Some(Own::Bytes(bytes)) => StateView::Bytes(bytes),
                        Some(Own::Tree(tree)) => StateView::Tree(tree),
                    };
                    listing.read(wanted, view, 1 << 16, 1 << 20);
                }
                listing
                    .finish()
                    .unwrap()
                    .map_or(Answer::Miss, |value| Answer::Value(String::from_utf8(value).unwrap()))
            }
        }
    }
}

/// Objects of a type in Luau.
struct Written {
    scripts: Arc<Scripts>,
    settings: Settings,
    zone: Zone,
    /// Plain states.
    objects: HashMap<&'static str, Vec<u8>>,
}

impl Written {
    fn new(scripts: &Arc<Scripts>) -> Self {
        Self {
            scripts: Arc::clone(scripts),
            settings: Settings::default(),
            zone: Zone::UTC,
            objects: HashMap::new(),
        }
    }

    fn call(&mut self, type_name: &str, step: &Step, now_ms: u64) -> Answer {
        let place = self.scripts.types().iter().position(|own| own.object_type.name == type_name).unwrap();
        let host_type = &self.scripts.types()[place];
        let method = host_type.object_type.methods.iter().position(|own| own.name == step.method).unwrap();
        let named = host_type.methods[method].keys.iter().filter_map(|place| step.arguments.get(*place));
        let others: Vec<Option<Vec<u8>>> = named.map(|key| self.objects.get(&**key).cloned()).collect();
        let mut out = Vec::new();
        let call = ScriptCall {
            object_type: place,
            method: ScriptMethodId::Own(method),
            key: step.key.as_bytes(),
            arguments: &Arguments::of(step.arguments.iter().map(String::as_bytes)),
            own: self.objects.get(step.key).map(Vec::as_slice),
            replaces: false,
            others: &others,
            expires_ms: None,
            now_ms,
            random: 7,
            settings: &self.settings,
            own_settings: &host_type.settings,
            zone: &self.zone,
        };
        let done = self.scripts.call(&call, &mut NoWorld, &mut out);
        if let Some(change) = done.change {
            assert!(change.fields.is_empty(), "these types have no fields");
            self.objects.insert(step.key, change.plain);
        }
        match done.outcome {
            ScriptOutcome::Value { .. } => Answer::Value(String::from_utf8(out).unwrap()),
            ScriptOutcome::Miss => Answer::Miss,
            ScriptOutcome::Error(line) => Answer::error(&line),
            ScriptOutcome::Moved => panic!("nothing else runs"),
        }
    }
}

thread_local! {
    static SCRIPTS: Arc<Scripts> = {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/objects/luau");
        let sources = Sources::read(&dir).unwrap();
        Scripts::load(&sources, &unhurried()).unwrap().0
    };
}

/// Makes the same calls of both.
fn agree(type_name: &str, steps: &[Step]) -> Result<(), TestCaseError> {
    agree_in("UTC", START_MS, type_name, steps)
}

/// The same from this time on, in a zone.
fn agree_in(zone: &str, start_ms: u64, type_name: &str, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut shipped, mut written) = (Shipped::new(zone), SCRIPTS.with(Written::new));
    written.zone = Zone::named(zone).unwrap();
    let mut now_ms = start_ms;
    for (number, step) in steps.iter().enumerate() {
        now_ms = now_ms.saturating_add_signed(step.moves_ms);
        let expected = shipped.call(type_name, step, now_ms);
        let got = written.call(type_name, step, now_ms);
        prop_assert_eq!(got, expected, "call {}: {:?} at {} in {}", number, step, now_ms, zone);
    }
    Ok(())
}

/// Calls of these methods with up to three of these arguments.
fn steps(
    methods: &'static [&'static str],
    arguments: &'static [&'static str],
    most: usize,
) -> impl Strategy<Value = Vec<Step>> {
    let moves = prop_oneof![
        6 => Just(0),
        3 => 1..2_000_i64,
        3 => select(vec![500, 30_000, 60_000, 90_000, 3_600_000, 7_200_000, 86_400_000]),
        1 => select(vec![-1, -1_000, -90_000, -3_600_000, -864_000_000]),
    ];
    let arguments = prop::collection::vec(select(arguments), 0..=most);
    let step = (select(methods), select(vec!["a", "b", "c"]), arguments, moves);
    let step = step.prop_map(|(method, key, arguments, moves_ms)| {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        Step { method, key, arguments, moves_ms }
    });
    prop::collection::vec(step, 1..60)
}

/// The calls after `new` of each object with these arguments.
fn after_new(arguments: &[&str], mut steps: Vec<Step>) -> Vec<Step> {
    let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
    let new = ["a", "b"].map(|key| Step { method: "new", key, arguments: arguments.clone(), moves_ms: 0 });
    steps.splice(0..0, new);
    steps
}

const ZONES: [&str; 8] = [
    "UTC",
    "Europe/Berlin",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",
    "America/Havana",
    "Asia/Kolkata",
];

/// A zone and a time in it, 2027 to 2036 or from 2010 on; half of them within two hours of a change of its clocks, if any follows.
fn moments() -> impl Strategy<Value = (&'static str, u64)> {
    let time =
        prop_oneof![1_262_304_000_000..2_082_758_400_000_i64, 1_798_761_600_000..2_114_380_800_000_i64];
    let beside = prop::option::of(-7_200_000..7_200_000_i64);
    (select(&ZONES[..]), time, beside).prop_map(|(zone, time_ms, beside_ms)| {
        let from = Timestamp::from_millisecond(time_ms).unwrap();
        let tz = Zone::named(zone).unwrap().time_zone();
        let change = beside_ms.zip(tz.following(from).next());
        let moment_ms = change.map(|(beside_ms, change)| change.timestamp().as_millisecond() + beside_ms);
        (zone, u64::try_from(moment_ms.unwrap_or(time_ms)).unwrap())
    })
}

/// A call of the object `a`.
fn step(method: &'static str, arguments: &[&str]) -> Step {
    let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
    Step { method, key: "a", arguments, moves_ms: 0 }
}

/// Uses two of two in a window, and asks again until it has ended.
fn use_up(window: &str) -> Vec<Step> {
    let add = |moves_ms| Step { moves_ms, ..step("addandcheck", &[]) };
    let peek = |moves_ms| Step { moves_ms, ..step("peek", &[]) };
    let mut steps = vec![step("new", &["2", window]), peek(0), add(0), add(0), add(0)];
    for moves_ms in
        [1, 9_000, 20_000, 30_000, 600_000, 1_200_000, 1_800_000, 3_600_000, -5_400_000, 43_200_000]
    {
        steps.extend([peek(moves_ms), add(0), add(0), peek(0)]);
    }
    steps
}

const MEMBERS: &[&str] = &["a", "b", "c", "tea", "cup", "10", "9", "", "\u{e9}", "a b:c"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn quota(
        window in select(vec!["minute", "hour", "day", "week", "month", "1s", "90s", "5m", "2h", "1d"]),
        limit in select(vec!["0", "1", "5", "10", "9007199254740991"]),
        steps in steps(
            &["addandcheck", "addandcheck", "addandcheck", "peek", "reset", "new"],
            &["1", "2", "5", "0", "-1", "x", "", "1.5", "hour", "90s", "367d", "fortnight", "10"],
            2,
        ),
    ) {
        agree("quota", &after_new(&[limit, window], steps))?;
    }

    #[test]
    fn windows_of_zones((zone, start_ms) in moments()) {
        for window in ["minute", "hour", "day", "week", "month", "90s", "1d"] {
            agree_in(zone, start_ms, "quota", &use_up(window))?;
        }
    }

    #[test]
    fn set(steps in steps(
        &["new", "put", "add", "exist", "delete", "remove", "count", "getall"],
        MEMBERS,
        3,
    )) {
        agree("set", &after_new(&[], steps))?;
    }

    #[test]
    fn combinations_of_sets(
        combination in select(vec!["union", "intersection", "diff"]),
        others in prop::collection::vec(prop::collection::vec(select(vec!["a", "b", "c"]), 0..4), 40),
        steps in steps(&["put", "remove"], &["a", "b", "c", "tea", "cup", "10", "9"], 3),
    ) {
        let mut mixed = after_new(&[], Vec::new());
        for (step, other) in steps.into_iter().zip(others) {
            let (key, arguments) = (step.key, other.iter().map(|&key| key.to_owned()).collect());
            mixed.push(step);
            mixed.push(Step { method: combination, key, arguments, moves_ms: 0 });
        }
        agree("set", &mixed)?;
    }

    /// Of one member: which of several is chosen is not the same.
    #[test]
    fn chosen_members(steps in steps(&["put", "pop", "random", "random"], &["a", "0", "+5", "1000"], 1)) {
        let is_put_of_another = |step: &Step| step.method == "put" && step.arguments != ["a"];
        let steps = steps.into_iter().filter(|step| !is_put_of_another(step)).collect();
        agree("set", &after_new(&[], steps))?;
    }

    #[test]
    fn map(steps in steps(
        &["new", "put", "put", "get", "exist", "delete", "count", "getkeys", "getvalues", "getall", "incr"],
        &["a", "b", "tea", "10", "-7", "+5", "007", "1.5", "-", "", "\u{e9}"],
        4,
    )) {
        agree("map", &after_new(&[], steps))?;
    }

    #[test]
    fn swcounter(
        size in select(vec!["1", "2", "3", "16"]),
        steps in steps(
            &["add", "add", "add", "getlast", "getmin", "getmax", "getavg", "getsum", "getp", "new"],
            &["1", "0.1", "-2.5", "1e3", "1e300", "-1e301", "99", "50", "100", "100.5", "33.333333", "0.0000001",
              "-0", "5.", ".5", "x", "", "0x10", "1024", "1025", "0", "3"],
            1,
        ),
    ) {
        agree("swcounter", &after_new(&[size], steps))?;
    }
}

/// Numbers of 64 bits: what numbers of Luau cannot tell exactly is refused, and all else is as in the shipped type.
#[test]
fn large_numbers_of_a_map() {
    let numbers = [
        "1",
        "-1",
        "0",
        "-0",
        "9007199254740990",
        "9007199254740991",
        "-9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "4503599627370496",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "99999999999999999999999",
        "000000000000000000005",
    ];
    let mut refused = 0;
    for value in numbers {
        for n in numbers {
            let (mut shipped, mut written) = (Shipped::new("UTC"), SCRIPTS.with(Written::new));
            for step in [step("new", &[]), step("put", &["k", value])] {
                assert_eq!(written.call("map", &step, START_MS), shipped.call("map", &step, START_MS));
            }
            let mut both =
                |step: &Step| (written.call("map", step, START_MS), shipped.call("map", step, START_MS));
            let (incr, get) = (step("incr", &["k", n]), step("get", &["k"]));
            match both(&incr) {
                (Answer::Error(text), _)
                    if text.ends_with(" must be within -9007199254740991 and 9007199254740991") =>
                {
                    refused += 1;
                    assert_eq!(both(&get).0, Answer::Value(value.to_owned()), "{value} + {n}");
                }
                // Of two errors each type names another one first.
                (Answer::Error(_), Answer::Error(_)) => {}
                (got, expected) => {
                    assert_eq!(got, expected, "{value} + {n}");
                    let (got, expected) = both(&get);
                    assert_eq!(got, expected, "{value} + {n}");
                }
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

/// Limits that numbers of Luau cannot tell exactly are refused; any number may be asked for.
#[test]
fn large_numbers_of_a_quota() {
    let new = |limit| step("new", &[limit, "hour"]);
    let large = "99999999999999999999999";
    let mut written = SCRIPTS.with(Written::new);
    for limit in ["9007199254740992", "9223372036854775807"] {
        let text = "CLIENT_ERROR quota.new: arg 1 must be a number from 0 to 9007199254740991";
        assert_eq!(written.call("quota", &new(limit), START_MS), Answer::Error(text.to_owned()));
    }
    let add = |n| step("addandcheck", &[n]);
    let most = "9007199254740991";
    let steps = [new(most), add("9007199254740990"), add(large), add("9007199254740992"), add("2"), add("1")];
    agree("quota", &steps).unwrap();
}

/// The hour that comes twice, and the hours that changes of the clock cut.
#[test]
fn windows_at_changes_of_the_clock() {
    for (zone, time) in [
        ("Europe/Berlin", "2027-10-31T01:30:10Z"),
        ("Europe/Berlin", "2027-10-31T00:59:50Z"),
        ("Europe/Berlin", "2027-10-31T00:30:10Z"),
        ("America/Santiago", "2027-04-04T02:30:10Z"),
        ("America/Santiago", "2027-04-04T03:30:10Z"),
        ("Australia/Lord_Howe", "2027-04-03T14:50:00Z"),
        ("Australia/Lord_Howe", "2027-10-02T15:20:00Z"),
    ] {
        let start = time.parse::<Timestamp>().unwrap().as_millisecond();
        for window in ["minute", "hour", "day", "week", "month"] {
            agree_in(zone, u64::try_from(start).unwrap(), "quota", &use_up(window)).unwrap();
        }
    }
}

/// What the generators above reach only by chance.
#[test]
fn the_golden_words() {
    let mut written = SCRIPTS.with(Written::new);
    for (type_name, replies) in [
        ("quota", ["CREATED", "QUOTA_OK", "QUOTA_EXCEEDED", "QUOTA_OK"]),
        ("quota_codes", ["CREATED", "0", "-1", "0"]),
    ] {
        written.objects.clear();
        let calls = [
            step("new", &["10", "hour"]),
            step("addandcheck", &["10"]),
            step("addandcheck", &["1"]),
            step("reset", &[]),
        ];
        for (call, reply) in calls.iter().zip(replies) {
            assert_eq!(written.call(type_name, call, START_MS), Answer::Value(reply.to_owned()), "{call:?}");
        }
    }
}

/// A counter of 1,024 values, the most that there can be: the arguments of a function and the state have room for them.
#[test]
fn the_largest_ring() {
    let steps: Vec<Step> = std::iter::once(step("new", &["1024"]))
        .chain((0..1_030).map(|number| step("add", &[&format!("{}.125", number % 97)])))
        .chain([step("getp", &["99.9"]), step("getp", &["0"])])
        .chain(["getmin", "getmax", "getsum", "getavg", "getlast"].map(|method| step(method, &[])))
        .collect();
    agree("swcounter", &steps).unwrap();
}
