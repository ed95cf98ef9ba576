//! Functions of `cg` that read or change more than the state.

use cattlegrid_objects::FollowUp;
use cattlegrid_store::TAGS_MAX;
use mlua::{Function, Lua, Table, Value, Variadic};

use super::arguments::{fault, number, text};
use super::{AFTER_BYTES_MAX, AFTER_MAX, call};
use crate::current::CurrentCall;
use crate::state::format::TOKENS_MAX;
use crate::{json, state, texts};

/// The longest key or token, in bytes.
const NAME_MAX: usize = 250;
/// The longest name of a tag in bytes, as in the engine.
const TAG_MAX: usize = 200;
/// The event of a method that is disabled, since it has exceeded its limits.
pub(crate) const SCRIPT_DISABLED: &str = "script_disabled";
/// The longest name of an event, in bytes.
const EVENT_MAX: usize = 64;
/// The longest time to live, in seconds.
const TTL_MAX_S: f64 = u32::MAX as f64;
/// The latest time for `cg.expire_at`, in Unix seconds: the end of the year 9999.
const EXPIRY_MAX_S: f64 = 253_402_300_799.0;

pub(super) fn install(lua: &Lua, cg: &Table) -> mlua::Result<()> {
    plain_values(lua, cg)?;
    life(lua, cg)?;
    cg.raw_set(
        "key",
        lua.create_function(|lua, ()| {
            let key = call(lua, "cg.key", |current| Ok(current.call.key.to_vec()))?;
            lua.create_string(&key)
        })?,
    )?;
    cg.raw_set(
        "once",
        lua.create_function(|lua, token: Value| {
            let token = name(lua, &token, "cg.once")?;
            call(lua, "cg.once", |current| Ok(once(current, &token)))
        })?,
    )?;
    cg.raw_set(
        "event",
        lua.create_function(|lua, (name, about): (Value, Value)| {
            let name = String::from_utf8_lossy(&text(lua, &name, "cg.event", 1)?).into_owned();
            let is_letter = |c: char| c == '_' || c.is_ascii_alphanumeric();
            if name.is_empty() || name.len() > EVENT_MAX || !name.chars().all(is_letter) {
                return Err(fault(lua, "cg.event: a name has 1 to 64 letters, digits and _"));
            }
            if name == SCRIPT_DISABLED {
                return Err(fault(
                    lua,
                    "cg.event: script_disabled is an event of the server: choose another name",
                ));
            }
            let mut out = b"{}".to_vec();
            if !about.is_nil() {
                out.clear();
                json::encode(&about, &mut out).map_err(|text| fault(lua, &format!("cg.event: {text}")))?;
                if out.first() != Some(&b'{') {
                    return Err(fault(lua, "cg.event: argument 2 must be a table with named entries"));
                }
            }
            let json = String::from_utf8_lossy(&out).into_owned();
            ask(lua, "cg.event", FollowUp::Event { name, json })
        })?,
    )?;
    cg.raw_set(
        "log",
        lua.create_function(|lua, values: Variadic<Value>| {
            let mut line = String::new();
            for (place, value) in values.iter().enumerate() {
                line.push_str(if place == 0 { "" } else { "\t" });
                match value {
                    // The bytes of a client may be invalid UTF-8.
                    Value::String(text) => line.push_str(&text.to_string_lossy()),
                    other => line.push_str(texts::without_address(&other.to_string()?)),
                }
                if line.len() > AFTER_BYTES_MAX {
                    return Err(fault(
                        lua,
                        &format!("cg.log: the line is longer than {AFTER_BYTES_MAX} bytes"),
                    ));
                }
            }
            ask(lua, "cg.log", FollowUp::Log(line))
        })?,
    )
}

fn plain_values(lua: &Lua, cg: &Table) -> mlua::Result<()> {
    cg.raw_set(
        "get",
        lua.create_function(|lua, key: Value| {
            let key = name(lua, &key, "cg.get")?;
            let mut value = Vec::new();
            let flags = call(lua, "cg.get", |current| Ok(current.world.get(&key, &mut value)))?;
            Ok(match flags {
                Some(flags) => (Some(lua.create_string(&value)?), Some(flags)),
                None => (None, None),
            })
        })?,
    )?;
    // Without arguments it is the collection with that name.
    let collection: Option<Function> = cg.raw_get("set")?;
    cg.raw_set(
        "set",
        lua.create_function(move |lua, arguments: Variadic<Value>| {
            if let (Some(collection), true) = (&collection, arguments.is_empty()) {
                return collection.call::<Value>(());
            }
            let argument = |place: usize| arguments.get(place).cloned().unwrap_or(Value::Nil);
            let key = name(lua, &argument(0), "cg.set")?;
            let value = text(lua, &argument(1), "cg.set", 2)?.to_vec();
            let ttl_s = match argument(2) {
                Value::Nil => 0.0,
                ttl => number(lua, &ttl, "cg.set", 3)?,
            };
            let ttl_s = seconds(ttl_s).map_err(|text| fault(lua, &format!("cg.set: {text}")))?;
            ask(lua, "cg.set", FollowUp::Set { key, value, ttl_s })?;
            Ok(Value::Nil)
        })?,
    )?;
    cg.raw_set(
        "load",
        lua.create_function(|lua, key: Value| {
            let key = name(lua, &key, "cg.load")?;
            ask(lua, "cg.load", FollowUp::Load(key))
        })?,
    )?;
    cg.raw_set(
        "invalidate",
        lua.create_function(|lua, tag: Value| {
            let tag = name_within(lua, &tag, "cg.invalidate", TAG_MAX)?;
            ask(lua, "cg.invalidate", FollowUp::Invalidate(tag))
        })?,
    )?;
    cg.raw_set(
        "tag",
        lua.create_function(|lua, tag: Value| {
            let tag = name_within(lua, &tag, "cg.tag", TAG_MAX)?;
            call(lua, "cg.tag", |current| {
                // The text must be a valid name of a tag.
                current.world.check(&FollowUp::Invalidate(tag.clone()))?;
                let tags = &mut current.written.tags;
                if tags.contains(&tag) {
                    return Ok(());
                }
                if tags.len() == TAGS_MAX {
                    return Err(format!("an object has up to {TAGS_MAX} tags"));
                }
                tags.push(tag);
                Ok(())
            })
        })?,
    )
}

/// Functions for the expiry of the object.
fn life(lua: &Lua, cg: &Table) -> mlua::Result<()> {
    cg.raw_set(
        "ttl",
        lua.create_function(|lua, ttl: Value| {
            let set = match ttl {
                Value::Nil => None,
                ttl => Some(number(lua, &ttl, "cg.ttl", 1)?),
            };
            call(lua, "cg.ttl", |current| {
                let now_ms = current.call.now_ms;
                let Some(ttl_s) = set else {
                    let end_ms = current.written.expires_ms.unwrap_or(current.call.expires_ms);
                    return Ok(Some(end_ms.map_or(-1.0, |end_ms| left(now_ms, end_ms))));
                };
                let ttl_s = seconds(ttl_s)?;
                let end_ms = now_ms.saturating_add(u64::from(ttl_s) * 1000);
                current.written.expires_ms = Some((ttl_s > 0).then_some(end_ms));
                Ok(None)
            })
        })?,
    )?;
    cg.raw_set(
        "expire_at",
        lua.create_function(|lua, time: Value| {
            let time = match time {
                Value::Nil => None,
                time => Some(number(lua, &time, "cg.expire_at", 1)?),
            };
            call(lua, "cg.expire_at", |current| {
                if time.is_some_and(|time| !(0.0..=EXPIRY_MAX_S).contains(&time)) {
                    return Err("a time is seconds from 1970 to the year 9999".to_owned());
                }
                current.written.expires_ms = Some(time.map(|time| (time * 1000.0) as u64));
                Ok(())
            })
        })?,
    )
}

/// The seconds left, as the method `ttl` of every object shows them: an expiry is stored in whole seconds,
/// rounded up, and in the last second 1 is left. 0: it has expired.
fn left(now_ms: u64, end_ms: u64) -> f64 {
    let left_ms = end_ms.saturating_sub(now_ms);
    if left_ms == 0 { 0.0 } else { (left_ms / 1000).max(1) as f64 }
}

/// The seconds to live, rounded up; 0: for ever.
///
/// # Errors
/// The number is out of range.
fn seconds(ttl_s: f64) -> Result<u32, String> {
    if (0.0..=TTL_MAX_S).contains(&ttl_s) {
        Ok(ttl_s.ceil() as u32)
    } else {
        Err(format!("a time to live is 0 to {TTL_MAX_S} seconds"))
    }
}

/// A key or token of 1 to 250 bytes.
///
/// # Errors
/// The value is none.
fn name(lua: &Lua, value: &Value, function: &str) -> mlua::Result<Vec<u8>> {
    name_within(lua, value, function, NAME_MAX)
}

/// A text of 1 to `most` bytes.
///
/// # Errors
/// The value is none.
fn name_within(lua: &Lua, value: &Value, function: &str, most: usize) -> mlua::Result<Vec<u8>> {
    let name = text(lua, value, function, 1)?;
    if (1..=most).contains(&name.len()) {
        Ok(name.to_vec())
    } else {
        Err(fault(lua, &format!("{function}: argument 1 must have 1 to {most} bytes")))
    }
}

/// Whether the object sees a token for the first time, among the last [`TOKENS_MAX`].
fn once(current: &mut CurrentCall<'_>, token: &[u8]) -> bool {
    let hash = rapidhash::v3::rapidhash_v3(token).to_le_bytes();
    let own = current.call.own.map_or(&[][..], state::tokens);
    let known = current.written.once.as_deref().unwrap_or(own);
    if known.as_chunks::<8>().0.contains(&hash) {
        return false;
    }
    let tokens = current.written.once.get_or_insert_with(|| own.to_vec());
    let surplus = (tokens.len() / 8 + 1).saturating_sub(TOKENS_MAX);
    tokens.drain(..surplus * 8);
    tokens.extend_from_slice(&hash);
    true
}

/// Adds a request that is executed after the call.
fn ask(lua: &Lua, name: &str, after: FollowUp) -> mlua::Result<()> {
    call(lua, name, |current| {
        if current.written.after.len() == AFTER_MAX {
            return Err(format!("a call sets, invalidates, loads, tells and logs up to {AFTER_MAX} things"));
        }
        let bytes: usize = current.written.after.iter().chain([&after]).map(size).sum();
        if bytes > AFTER_BYTES_MAX {
            return Err(format!("what follows a call has up to {AFTER_BYTES_MAX} bytes"));
        }
        current.world.check(&after)?;
        current.written.after.push(after);
        Ok(())
    })
}

fn size(after: &FollowUp) -> usize {
    match after {
        FollowUp::Set { key, value, .. } => key.len() + value.len(),
        FollowUp::Invalidate(name) | FollowUp::Load(name) => name.len(),
        FollowUp::Event { name, json } => name.len() + json.len(),
        FollowUp::Log(line) => line.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::current::CallEffects;
    use crate::testing::{FakeWorld, TestSetting, error_text, eval, vm};

    /// What a source has written, and its error.
    fn run(setting: &TestSetting, source: &str) -> (CallEffects, Option<String>) {
        let (lua, mut world) = (vm(), FakeWorld::default());
        world.plain.insert(b"plain".to_vec(), (b"value".to_vec(), 3));
        let run = || lua.load(source).set_name("=test.luau").exec();
        let (result, written) = setting.run(&mut world, run);
        (written, result.err().map(|error| error_text(&error)))
    }

    fn written(source: &str) -> CallEffects {
        let (written, error) = run(&TestSetting::default(), source);
        assert_eq!(error, None, "{source}");
        written
    }

    fn refused(source: &str) -> String {
        run(&TestSetting::default(), source).1.unwrap_or_default()
    }

    #[test]
    fn what_follows_a_call() {
        let source = "cg.set('a', 'b', 60); cg.set('c', 5); cg.invalidate('t'); cg.load('k')
            cg.event('made', {b = 1, a = 'x'}); cg.event('made'); cg.log('l', 1, true, nil); print('p\\xff')";
        let event = |json: &str| FollowUp::Event { name: "made".to_owned(), json: json.to_owned() };
        let set = |key: &[u8], value: &[u8], ttl_s| FollowUp::Set {
            key: key.to_vec(),
            value: value.to_vec(),
            ttl_s,
        };
        assert_eq!(
            written(source).after,
            [
                set(b"a", b"b", 60),
                set(b"c", b"5", 0),
                FollowUp::Invalidate(b"t".to_vec()),
                FollowUp::Load(b"k".to_vec()),
                event(r#"{"a":"x","b":1}"#),
                event("{}"),
                FollowUp::Log("l\t1\ttrue\tnil".to_owned()),
                FollowUp::Log("p\u{fffd}".to_owned()),
            ]
        );
        assert_eq!(written("cg.tag('a'); cg.tag('b'); cg.tag('a')").tags, [b"a".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn a_line_of_the_log_shows_no_address() {
        let source = "cg.log({}, print, coroutine.create(print), setmetatable({}, {__tostring = function() return 'own' end}), 'table: 0x1')";
        let line = "table\tfunction\tthread\town\ttable: 0x1";
        assert_eq!(written(source).after, [FollowUp::Log(line.to_owned())]);
    }

    #[test]
    fn the_objects_key() {
        assert_eq!(eval(&vm(), &TestSetting::default(), "return cg.key()"), "k");
    }

    #[test]
    fn plain_values_are_read() {
        let (lua, mut world) = (vm(), FakeWorld::default());
        world.plain.insert(b"plain".to_vec(), (b"value".to_vec(), 3));
        let source =
            "local v, f = cg.get('plain'); local none, nothing = cg.get('none'); return v, f, none, nothing";
        let run = || lua.load(source).eval::<(Option<String>, Option<u32>, Option<String>, Option<u32>)>();
        let result = TestSetting::default().run(&mut world, run).0.unwrap();
        assert_eq!(result, (Some("value".to_owned()), Some(3), None, None));
    }

    #[test]
    fn refusals() {
        let long = format!("cg.get(string.rep('k', {}))", NAME_MAX + 1);
        for (source, text) in [
            ("cg.get('')", "test.luau:1: cg.get: argument 1 must have 1 to 250 bytes"),
            (&*long, "test.luau:1: cg.get: argument 1 must have 1 to 250 bytes"),
            ("cg.tag(string.rep('t', 201))", "test.luau:1: cg.tag: argument 1 must have 1 to 200 bytes"),
            ("cg.invalidate('')", "test.luau:1: cg.invalidate: argument 1 must have 1 to 200 bytes"),
            ("cg.get()", "test.luau:1: cg.get: argument 1 must be a string, and is nil"),
            ("cg.get({})", "test.luau:1: cg.get: argument 1 must be a string, and is a table"),
            ("\n\ncg.set('a')", "test.luau:3: cg.set: argument 2 must be a string, and is nil"),
            ("cg.set('a', 'b', -1)", "test.luau:1: cg.set: a time to live is 0 to 4294967295 seconds"),
            ("cg.set('a', 'b', 2^32)", "test.luau:1: cg.set: a time to live is 0 to 4294967295 seconds"),
            ("cg.set('a', 'b', 0/0)", "test.luau:1: cg.set: argument 3 must be a number, and is NaN"),
            ("cg.invalidate('bad')", "test.luau:1: cg.invalidate: no tag"),
            ("cg.tag('bad')", "test.luau:1: cg.tag: no tag"),
            ("cg.event('a b')", "test.luau:1: cg.event: a name has 1 to 64 letters, digits and _"),
            (
                "cg.event('script_disabled')",
                "test.luau:1: cg.event: script_disabled is an event of the server: choose another name",
            ),
            ("cg.event('script_disabled2')", ""),
            ("cg.event('a', 1)", "test.luau:1: cg.event: argument 2 must be a table with named entries"),
            ("cg.event('a', {1})", "test.luau:1: cg.event: argument 2 must be a table with named entries"),
            (
                "cg.event('a', {x = print})",
                "test.luau:1: cg.event: field 'x' is a function, which JSON has no form for",
            ),
            ("cg.expire_at(-1)", "test.luau:1: cg.expire_at: a time is seconds from 1970 to the year 9999"),
            ("cg.ttl('x')", "test.luau:1: cg.ttl: argument 1 must be a number, and is a string"),
            ("cg.once()", "test.luau:1: cg.once: argument 1 must be a string, and is nil"),
        ] {
            assert_eq!(refused(source), text, "{source}");
        }
        assert_eq!(refused("cg.get(string.rep('k', 250))"), "");
    }

    #[test]
    fn without_a_call_there_is_nothing_to_read() {
        let lua = vm();
        for function in [
            "cg.get('a')",
            "cg.log('a')",
            "cg.ttl()",
            "cg.key()",
            "cg.once('a')",
            "cg.now()",
            "cg.now_ms()",
            "os.time()",
            "math.random()",
        ] {
            let error = lua.load(function).set_name("=t.luau").exec().unwrap_err();
            assert!(error_text(&error).ends_with(": only within a call of a method"), "{function}: {error}");
        }
    }

    #[test]
    fn a_call_asks_for_64_things() {
        let many = |count: usize| format!("for i = 1, {count} do cg.log('x') end");
        assert_eq!(written(&many(AFTER_MAX)).after.len(), AFTER_MAX);
        let text = "test.luau:1: cg.log: a call sets, invalidates, loads, tells and logs up to 64 things";
        assert_eq!(refused(&many(AFTER_MAX + 1)), text);
        let tags = |count: usize| format!("for i = 1, {count} do cg.tag('t' .. i) end");
        assert_eq!(written(&tags(TAGS_MAX)).tags.len(), TAGS_MAX);
        assert_eq!(refused(&tags(TAGS_MAX + 1)), "test.luau:1: cg.tag: an object has up to 8 tags");
    }

    #[test]
    fn a_call_asks_for_a_megabyte() {
        let set = |bytes: usize| format!("cg.set('a', string.rep('x', {bytes}))");
        assert_eq!(written(&set(AFTER_BYTES_MAX - 1)).after.len(), 1);
        assert_eq!(
            refused(&set(AFTER_BYTES_MAX)),
            "test.luau:1: cg.set: what follows a call has up to 1048576 bytes"
        );
        let twice = format!("{0}; {0}", set(AFTER_BYTES_MAX / 2));
        assert_eq!(refused(&twice), "test.luau:1: cg.set: what follows a call has up to 1048576 bytes");
        let log = format!("cg.log(string.rep('x', {}))", AFTER_BYTES_MAX + 1);
        assert_eq!(refused(&log), "test.luau:1: cg.log: the line is longer than 1048576 bytes");
    }

    #[test]
    fn ends_of_objects() {
        let now_ms = TestSetting::default().now_ms;
        assert_eq!(written("").expires_ms, None);
        assert_eq!(written("cg.ttl(60)").expires_ms, Some(Some(now_ms + 60_000)));
        assert_eq!(written("cg.ttl(0.5)").expires_ms, Some(Some(now_ms + 1000)), "rounded up");
        assert_eq!(written("cg.ttl(0)").expires_ms, Some(None));
        assert_eq!(written("cg.ttl(4294967295)").expires_ms, Some(Some(now_ms + 4_294_967_295_000)));
        assert_eq!(written("cg.expire_at(1700000100.5)").expires_ms, Some(Some(1_700_000_100_500)));
        assert_eq!(written("cg.expire_at(0)").expires_ms, Some(Some(0)));
        assert_eq!(written("cg.expire_at()").expires_ms, Some(None));
        assert_eq!(written("cg.expire_at(253402300799)").expires_ms, Some(Some(253_402_300_799_000)));
        let lua = vm();
        let expiring = TestSetting { expires_ms: Some(now_ms + 1500), ..TestSetting::default() };
        assert_eq!(eval(&lua, &expiring, "local left = cg.ttl(); cg.ttl(9); return left, cg.ttl()"), "1 9");
        assert_eq!(eval(&lua, &TestSetting::default(), "return cg.ttl()"), "-1");
    }

    #[test]
    fn tokens_are_seen_once() {
        let lua = vm();
        let source = "return cg.once('a'), cg.once('b'), cg.once('a')";
        assert_eq!(eval(&lua, &TestSetting::default(), source), "true true false");
        // The state that a call leaves, for the next.
        let names = crate::names::Names::new();
        let call = |own: Option<Vec<u8>>, source: &str| {
            let setting = TestSetting { own, ..TestSetting::default() };
            let run = || {
                let results: String = lua
                    .load(source)
                    .eval::<Variadic<bool>>()
                    .unwrap()
                    .iter()
                    .map(|b| if *b { '1' } else { '0' })
                    .collect();
                let mut plain = Vec::new();
                state::encode(&lua, &lua.create_table().unwrap(), 1, &names, 65_536, &mut plain).unwrap();
                (results, plain)
            };
            setting.run(&mut FakeWorld::default(), run).0
        };
        let (results, plain) = call(None, "return cg.once('t1')");
        assert_eq!(results, "1");
        assert_eq!(call(Some(plain.clone()), "return"), (String::new(), plain.clone()), "they stay");
        let (results, plain) = call(Some(plain), "return cg.once('t1'), cg.once('t2')");
        assert_eq!(results, "01");
        // 30 more fit; with another, the oldest is forgotten.
        let (_, plain) = call(Some(plain), "for i = 3, 32 do cg.once('t' .. i) end");
        assert_eq!(plain.len(), 2 + 2 + 8 * TOKENS_MAX);
        assert_eq!(call(Some(plain.clone()), "return cg.once('t1'), cg.once('t32')").0, "00");
        let (_, plain) = call(Some(plain), "cg.once('t33')");
        assert_eq!(plain.len(), 2 + 2 + 8 * TOKENS_MAX);
        assert_eq!(call(Some(plain), "return cg.once('t2'), cg.once('t33'), cg.once('t1')").0, "001");
    }
}
