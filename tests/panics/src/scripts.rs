//! Methods in Luau that run while a cache is served: panics of what they call, and errors that they raise themselves.

use std::path::PathBuf;
use std::sync::Arc;

use cattlegrid_objects::{
    Arguments, FollowUp, Host, ObjectMoved, ScriptCall, ScriptMethodId, ScriptOutcome, ScriptWorld, Settings,
    StateView, TypeSettings, Zone,
};
use cattlegrid_panic::guarded;
use cattlegrid_scripts::{Limits, Scripts, SourceFile, Sources};

use crate::cache::{Cache, Serving};

/// Reaches the world from every place from which a method can call a function.
const SOURCE: &str = r#"
local T = {}

function T.new()
    return { n = 0 }
end

function T.fine(self)
    self.n += 1
    return self.n
end

function T.get(self, key: string)
    self.n += 1
    return cg.get(key)
end

function T.set(self, key: string)
    self.n += 1
    cg.set(key, "value")
    return "SET"
end

function T.caught(self, key: string)
    self.n += 1
    local ok = pcall(cg.get, key)
    local handled = xpcall(cg.get, function() return "handled" end, key)
    return if ok and handled then "ok" else "caught"
end

function T.turned(self, key: string)
    self.n += 1
    return coroutine.wrap(function()
        return coroutine.wrap(function() return cg.get(key) end)()
    end)()
end

function T.resumed(self, key: string)
    self.n += 1
    return coroutine.resume(coroutine.create(cg.get), key)
end

function T.sorted(self, key: string)
    self.n += 1
    table.sort({ 3, 2, 1 }, function() return cg.get(key) == nil end)
end

function T.indexed(self, key: string)
    self.n += 1
    return setmetatable({}, { __index = function(_, own) return cg.get(own) end })[key]
end

function T.replaced(self, key: string)
    self.n += 1
    return (string.gsub("x", "x", function() return cg.get(key) end))
end

local function deep(n, text)
    if n == 0 then
        error(text)
    end
    local ok, said = pcall(deep, n - 1, text)
    error(said, 0)
end

function T.raise_deep(self, text: string)
    self.n += 1
    deep(50, text)
end

function T.raise_in_sort(self, text: string)
    self.n += 1
    table.sort({ 3, 2, 1 }, function() error(text) end)
end

function T.raise_in_index(self, text: string)
    self.n += 1
    return setmetatable({}, { __index = function() error(text) end }).x
end

function T.raise_in_gsub(self, text: string)
    self.n += 1
    return string.gsub("x", "x", function() error(text) end)
end

function T.raise_in_turn(self, text: string)
    self.n += 1
    return coroutine.wrap(function()
        table.sort({ 3, 2, 1 }, function() error(text) end)
    end)()
end

function T.raise_in_handler(self, text: string)
    self.n += 1
    xpcall(error, function() error(text) end, text)
    error(text)
end

function T.raise_by_us(self, text: string)
    self.n += 1
    pcall(cg.json.decode, text)
    pcall(function() cg.tag(nil) end)
    cg.json.decode(text)
end

function T.overflow(self)
    self.n += 1
    return T.overflow(self) + 1
end

function T.endless(self)
    self.n += 1
    while true do
        pcall(function() while true do end end)
    end
end

return T
"#;

/// What the world does when it is asked.
enum Deed {
    Nothing,
    Panic,
    PanicLocked(Arc<Cache>),
}

impl ScriptWorld for Deed {
    fn read(&mut self, _: usize, read: &mut dyn FnMut(StateView<'_>)) -> Result<(), ObjectMoved> {
        read(StateView::Absent);
        Ok(())
    }

    fn get(&mut self, _: &[u8], out: &mut Vec<u8>) -> Option<u32> {
        self.act();
        out.extend_from_slice(b"value");
        Some(0)
    }

    fn check(&self, _: &FollowUp) -> Result<(), String> {
        self.act();
        Ok(())
    }
}

impl Deed {
    fn act(&self) {
        match self {
            Self::Nothing => {}
            Self::Panic => panic!("in the world of a script, as meant"),
            Self::PanicLocked(cache) => cache.locked(|| panic!("with a shard locked, as meant")),
        }
    }
}

/// The host of one type, and an object of it.
struct Risky {
    scripts: Arc<Scripts>,
    state: Vec<u8>,
}

impl Risky {
    fn new() -> Self {
        let path = PathBuf::from("risky.luau");
        let source = SourceFile { name: "risky".to_owned(), path, text: SOURCE.to_owned() };
        let sources = Sources { types: vec![source], ..Sources::default() };
        // Breaches are not what this is about: no method reaches the fifth.
        let (scripts, _) = Scripts::load(&sources, &Limits::default()).expect("sound sources");
        let mut risky = Self { scripts, state: Vec::new() };
        let (said, state) = risky.call("new", &[], false, &mut Deed::Nothing);
        assert_eq!(said, "CREATED");
        risky.state = state.expect("an object");
        risky
    }

    /// What the method answers, and the new state if there is one.
    fn call(
        &self,
        method: &str,
        arguments: &[&str],
        exists: bool,
        world: &mut Deed,
    ) -> (String, Option<Vec<u8>>) {
        let settings = Settings::default();
        let own_settings = TypeSettings::new("risky");
        let methods = self.scripts.types()[0].object_type.methods;
        let place = methods.iter().position(|one| one.name == method).expect("a method");
        let arguments = Arguments::of(arguments.iter().map(|one| one.as_bytes()));
        let call = ScriptCall {
            object_type: 0,
            method: ScriptMethodId::Own(place),
            key: b"key",
            arguments: &arguments,
            own: exists.then_some(&*self.state),
            replaces: false,
            others: &[],
            expires_ms: None,
            now_ms: 1_700_000_000_000,
            random: 7,
            settings: &settings,
            own_settings: &own_settings,
            zone: &Zone::UTC,
        };
        let mut out = Vec::new();
        let done = self.scripts.call(&call, world, &mut out);
        let said = match done.outcome {
            ScriptOutcome::Value { .. } => String::from_utf8_lossy(&out).into_owned(),
            ScriptOutcome::Miss => "a miss".to_owned(),
            ScriptOutcome::Error(text) => text,
            ScriptOutcome::Moved => "moved".to_owned(),
        };
        (said, done.change.map(|change| change.plain))
    }

    /// A call that fails with this text, changes nothing, and leaves a host that works.
    #[track_caller]
    fn fails(&self, method: &str, arguments: &[&str], world: &mut Deed, wanted: &str) {
        let (said, state) = self.call(method, arguments, true, world);
        assert!(said.starts_with("SERVER_ERROR script risky.") && said.contains(wanted), "{method}: {said}");
        assert_eq!(state, None, "{method}");
        let (said, state) = self.call("fine", &[], true, &mut Deed::Nothing);
        assert!(said == "1" && state.is_some_and(|state| state != self.state), "after {method}: {said}");
    }
}

/// Methods that reach the world.
const REACH: &[&str] = &["get", "set", "caught", "turned", "resumed", "sorted", "indexed", "replaced"];

/// Methods that raise an error in a nested call.
const RAISE: &[&str] =
    &["raise_deep", "raise_in_sort", "raise_in_index", "raise_in_gsub", "raise_in_turn", "raise_in_handler"];

/// Our own functions panic under every kind of call; no `pcall` of the script takes it for an error of its own.
pub(crate) fn panics() {
    let cache = Cache::new();
    let serving = Serving::start(&cache);
    let risky = Risky::new();
    for method in REACH {
        let (said, _) = risky.call(method, &["key"], true, &mut Deed::Nothing);
        assert!(!said.contains("ERROR"), "{method}: {said}");
    }
    for _ in 0..10 {
        for method in REACH {
            risky.fails(method, &["key"], &mut Deed::Panic, "internal error");
            serving.goes_on();
        }
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for method in REACH.iter().cycle().take(40) {
                    risky.fails(method, &["key"], &mut Deed::Panic, "internal error");
                }
            });
        }
    });
    serving.goes_on();
}

/// Errors unwind through frames of the VM, of ours and of its library, and end at the call.
pub(crate) fn errors() {
    let cache = Cache::new();
    let serving = Serving::start(&cache);
    let risky = Risky::new();
    for _ in 0..100 {
        for method in RAISE {
            risky.fails(method, &["as meant"], &mut Deed::Nothing, "as meant");
        }
        risky.fails("raise_by_us", &["{"], &mut Deed::Nothing, "");
        serving.goes_on();
    }
    for _ in 0..4 {
        risky.fails("overflow", &[], &mut Deed::Nothing, "overflow");
        risky.fails("endless", &[], &mut Deed::Nothing, "took longer than 10 ms");
        serving.goes_on();
    }
}

/// A function of ours panics with a shard locked, inside what guards the call and outside.
pub(crate) fn locked() {
    let cache = Cache::new();
    let risky = Risky::new();
    guarded(|| risky.call("caught", &["key"], true, &mut Deed::PanicLocked(Arc::clone(&cache)))).ok();
}
