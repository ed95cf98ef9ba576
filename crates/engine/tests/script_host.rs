//! A host of types of users' own whose methods are written in Rust: what the engine does with calls, without
//! scripts.
//!
//! The type `tally` keeps a number as decimal text, with any letters behind it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cattlegrid_objects::{
    Arguments, FieldCall, FieldKind, FollowUp, Host, HostType, MethodDefinition, NewState, PendingChanges,
    Registry, ScriptCall, ScriptMethod, ScriptMethodId, ScriptOutcome, ScriptResult, ScriptWorld, Settings,
    StateView, TypeSettings, copy_plain, define,
};

/// Name, most arguments, whether it runs without an object, whether it only reads, places of keys.
type Row = (&'static str, usize, bool, bool, &'static [usize]);

/// The methods of `tally`.
const METHODS: &[Row] = &[
    ("new", 2, true, false, &[]),
    ("hoard", 1, true, false, &[]),
    ("add", 1, true, false, &[]),
    ("count", 1, false, false, &[]),
    ("get", 0, false, true, &[]),
    ("fail", 1, false, false, &[]),
    ("grow", 1, true, false, &[]),
    ("until", 1, false, false, &[]),
    ("mark", 8, true, false, &[]),
    ("put", 3, true, false, &[]),
    ("bump", 1, true, false, &[]),
    ("load", 1, true, false, &[]),
    ("event", 2, true, false, &[]),
    ("log", 1, true, false, &[]),
    ("fetch", 1, true, false, &[]),
    ("sum", 2, false, true, &[0, 1]),
    ("twice", 0, false, true, &[]),
    ("lost", 0, false, false, &[]),
    ("fill", 3, true, false, &[]),
    ("clear", 0, false, false, &[]),
];

/// What is done in the middle of the next call.
type Act = Box<dyn FnOnce() + Send>;

pub(crate) struct TestHost {
    types: Vec<HostType>,
    digest: u64,
    between: Mutex<Option<Act>>,
    /// Runs of methods.
    pub(crate) runs: AtomicUsize,
}

impl fmt::Debug for TestHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestHost").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl TestHost {
    pub(crate) fn new(digest: u64) -> Arc<Self> {
        Self::of(&["tally"], digest)
    }

    /// Types with these names, all of them tallies.
    pub(crate) fn of(names: &[&str], digest: u64) -> Arc<Self> {
        let definition = |row: &Row| MethodDefinition {
            name: row.0.to_owned(),
            arguments: (0, row.1),
            usage: String::new(),
            runs_absent: row.2,
        };
        let definitions: Vec<_> = METHODS.iter().map(definition).collect();
        let host_type = |name: &&str| HostType {
            object_type: define(name, &definitions).unwrap().forever(),
            settings: TypeSettings::new(name),
            version: 1,
            migrates: false,
            methods: METHODS.iter().map(|row| ScriptMethod { reads: row.3, keys: row.4.to_vec() }).collect(),
        };
        let types = names.iter().map(host_type).collect();
        Arc::new(Self { types, digest, between: Mutex::default(), runs: AtomicUsize::new(0) })
    }

    /// The types that are shipped, and those of this host.
    pub(crate) fn registry(self: &Arc<Self>, change: impl FnOnce(&mut Settings)) -> Arc<Registry> {
        let mut settings = Settings::default();
        for own in &self.types {
            settings.types.retain(|one| one.name != own.settings.name);
            settings.types.push(own.settings.clone());
        }
        change(&mut settings);
        let host: Arc<dyn Host> = Arc::clone(self) as _;
        Arc::new(Registry::with_host(settings, Some(host)).unwrap())
    }

    /// Does this once, in the middle of the next call.
    pub(crate) fn between(&self, act: impl FnOnce() + Send + 'static) {
        *self.between.lock().unwrap() = Some(Box::new(act));
    }

    /// Nothing is done in the middle of the next call.
    pub(crate) fn nothing_between(&self) {
        self.between.lock().unwrap().take();
    }
}

/// A set of this many members, as field 1.
fn hoard(world: &mut dyn ScriptWorld, count: u64) -> PendingChanges {
    let mut fields = PendingChanges::default();
    for n in 0..count {
        let member = n.to_string();
        let arguments = &Arguments::of([member.as_bytes()]);
        let (kind, method) = (FieldKind::Set, "put");
        let call = FieldCall { field: 1, kind, method, arguments, now_ms: 0, random: 0 };
        let mut put = |view: StateView<'_>| assert!(fields.call(view, &call, &mut Vec::new()).is_ok());
        assert!(world.read(0, &mut put).is_ok());
    }
    fields.keep_fields(&[1]);
    fields
}

/// The number at the beginning.
fn number(plain: Option<&[u8]>) -> i64 {
    let text = plain.map(|plain| String::from_utf8(plain.to_vec()).unwrap()).unwrap_or_default();
    let digits: String = text.chars().take_while(|c| *c == '-' || c.is_ascii_digit()).collect();
    digits.parse().unwrap_or(0)
}

impl Host for TestHost {
    fn types(&self) -> &[HostType] {
        &self.types
    }

    fn digest(&self) -> u64 {
        self.digest
    }

    #[expect(clippy::too_many_lines, reason = "a method each")]
    fn call(&self, call: &ScriptCall<'_>, world: &mut dyn ScriptWorld, out: &mut Vec<u8>) -> ScriptResult {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let act = self.between.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
        let mut done = ScriptResult {
            outcome: ScriptOutcome::Value { flags: 0 },
            change: None,
            expires_ms: None,
            after: Vec::new(),
        };
        let argument = |place: usize| call.arguments.get(place).unwrap_or_default();
        let text = |place: usize| String::from_utf8(argument(place).to_vec()).unwrap();
        let state = |plain: Vec<u8>| Some(Box::new(NewState { plain, ..NewState::default() }));
        let ScriptMethodId::Own(place) = call.method else {
            out.extend_from_slice(call.own.expect("there is an object"));
            return done;
        };
        let name = METHODS[place].0;
        let own = number(call.own);
        if call.own.is_none() && !METHODS[place].2 {
            done.outcome = ScriptOutcome::Miss;
            return done;
        }
        let mut after = |one: FollowUp| match world.check(&one) {
            Ok(()) => {
                done.after.push(one);
                Ok(b"OK".to_vec())
            }
            Err(error) => Err(format!("CLIENT_ERROR {name}: {error}")),
        };
        let answer = match name {
            "new" if argument(0) == b"no" => {
                done.outcome = ScriptOutcome::Miss;
                return done;
            }
            "new" => {
                let plain = number(Some(argument(0))).to_string().into_bytes();
                let tags = call.arguments.get(1).map(<[u8]>::to_vec).into_iter().collect();
                done.change = Some(Box::new(NewState { plain, tags, ..NewState::default() }));
                Ok(b"CREATED".to_vec())
            }
            "hoard" => {
                let (fields, plain) = (hoard(world, own.unsigned_abs()), own.to_string().into_bytes());
                done.change = Some(Box::new(NewState { plain, fields, tags: Vec::new() }));
                Ok(b"OK".to_vec())
            }
            "add" | "count" => {
                let sum = (own + number(Some(argument(0)))).to_string().into_bytes();
                if argument(0) != b"0" {
                    done.change = state(sum.clone());
                }
                Ok(sum)
            }
            "get" => Ok(own.to_string().into_bytes()),
            "fail" => {
                done.change = state(b"1000000".to_vec());
                done.expires_ms = Some(Some(1));
                done.after = vec![
                    FollowUp::Set { key: b"failed".to_vec(), value: b"x".to_vec(), ttl_s: 0 },
                    FollowUp::Event { name: "failed".to_owned(), json: "{}".to_owned() },
                    FollowUp::Log("failed".to_owned()),
                ];
                Err(text(0).replace('+', " "))
            }
            "grow" => {
                let mut plain = own.to_string().into_bytes();
                plain.resize(number(Some(argument(0))).unsigned_abs() as usize, b'x');
                done.change = state(plain);
                Ok(b"OK".to_vec())
            }
            "until" => {
                done.expires_ms = Some(match number(Some(argument(0))) {
                    0 => None,
                    seconds => Some(call.now_ms.saturating_add_signed(seconds * 1000)),
                });
                Ok(b"OK".to_vec())
            }
            "mark" => {
                let tags = (0..call.arguments.len()).map(|place| argument(place).to_vec()).collect();
                let plain = own.to_string().into_bytes();
                done.change = Some(Box::new(NewState { plain, tags, ..NewState::default() }));
                Ok(b"OK".to_vec())
            }
            "put" => {
                let ttl_s = number(Some(argument(2))).unsigned_abs() as u32;
                after(FollowUp::Set { key: argument(0).to_vec(), value: argument(1).to_vec(), ttl_s })
            }
            "bump" => after(FollowUp::Invalidate(argument(0).to_vec())),
            "load" => after(FollowUp::Load(argument(0).to_vec())),
            "event" => after(FollowUp::Event { name: text(0), json: text(1) }),
            "log" => after(FollowUp::Log(text(0))),
            "fetch" => {
                let mut value = Vec::new();
                match world.get(argument(0), &mut value) {
                    None => value.extend_from_slice(b"none"),
                    Some(flags) => value.extend_from_slice(format!(" {flags}").as_bytes()),
                }
                Ok(value)
            }
            "sum" => {
                assert_eq!(call.others.len(), 2, "a place for each key");
                let others = call.others.iter().map(|other| number(other.as_deref()));
                let all = [own].into_iter().chain(others);
                let shown: Vec<_> = all.map(|one| one.to_string()).collect();
                for (object, other) in call.others.iter().enumerate() {
                    let mut plain = Vec::new();
                    let mut is_there = false;
                    let read = world.read(object + 1, &mut |view| is_there = copy_plain(view, &mut plain));
                    if read.is_err() {
                        done.outcome = ScriptOutcome::Moved;
                        return done;
                    }
                    assert_eq!(is_there.then_some(&plain), other.as_ref(), "it is shown as it was copied");
                }
                Ok(shown.join(" ").into_bytes())
            }
            "twice" => {
                for _ in 0..2 {
                    let mut plain = Vec::new();
                    let mut read = |view: StateView<'_>| assert!(copy_plain(view, &mut plain));
                    if world.read(0, &mut read).is_err() {
                        done.outcome = ScriptOutcome::Moved;
                        return done;
                    }
                    assert_eq!(number(Some(&plain)), own, "it is shown as it was copied");
                    let act = self.between.lock().unwrap().take();
                    if let Some(act) = act {
                        act();
                    }
                }
                Ok(own.to_string().into_bytes())
            }
            // Puts members into a set: the first, their number, and their length.
            "fill" => {
                let [from, count, len] = [0, 1, 2].map(|place| number(Some(argument(place))).unsigned_abs());
                let mut fields = PendingChanges::default();
                let mut put = |view: StateView<'_>| {
                    for n in from..from + count {
                        let member = format!("{n:0len$}", len = len as usize);
                        let arguments = &Arguments::of([member.as_bytes()]);
                        let call = FieldCall {
                            field: 1,
                            kind: FieldKind::Set,
                            method: "put",
                            arguments,
                            now_ms: 1,
                            random: 1,
                        };
                        fields.call(view, &call, &mut Vec::new()).unwrap();
                    }
                };
                if world.read(0, &mut put).is_err() {
                    done.outcome = ScriptOutcome::Moved;
                    return done;
                }
                fields.keep_fields(&[1]);
                let plain = own.to_string().into_bytes();
                done.change = Some(Box::new(NewState { plain, fields, tags: Vec::new() }));
                Ok(b"OK".to_vec())
            }
            "clear" => {
                let mut fields = PendingChanges::default();
                fields.keep_fields(&[]);
                let plain = own.to_string().into_bytes();
                done.change = Some(Box::new(NewState { plain, fields, tags: Vec::new() }));
                Ok(b"OK".to_vec())
            }
            "lost" => {
                done.outcome = ScriptOutcome::Moved;
                return done;
            }
            name => unreachable!("{name}"),
        };
        match answer {
            Ok(value) => out.extend_from_slice(&value),
            Err(line) => done.outcome = ScriptOutcome::Error(line),
        }
        done
    }
}
