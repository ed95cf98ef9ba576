//! The types that are switched on: reading of names, and execution of calls.

pub(crate) mod stray;

use cattlegrid_store::Memory;
use cattlegrid_tags::{PREFIXES_MAX, PrefixId};

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::arguments::{Arguments, escape_key, unescape, unescaped};
use crate::calendar::Zone;
use crate::call::{CACHE_MISS, CallContext, CallError, CallResult, MethodReply, ObjectOutcome};
use crate::definitions;
use crate::fields;
use crate::method::{Method, MethodId, ObjectType, OnAbsent};
use crate::name::{CallName, Spot, VirtualKey};
use crate::name_table::NameTable;
use crate::native;
use crate::object::{Object, ObjectState, StateChange};
use crate::script::{Host, NewState, ScriptMethod, ScriptMethodId};
use crate::settings::{Eviction, Settings, TypeSettings};

/// The longest name of a type, in bytes.
const TYPE_NAME_MAX: usize = 16;
/// The number of the next registry.
static NUMBERS: AtomicU32 = AtomicU32::new(0);
/// The types' numbers are below this.
const IDS: usize = definitions::FIRST_ID as usize + definitions::TYPES_MAX;
/// The bits of an object's number that are for its type. The higher bits are the number of its prefix, so
/// that each prefix has its own objects.
pub const TYPE_BITS: u32 = 10;
const _: () = assert!(IDS <= 1 << TYPE_BITS && PREFIXES_MAX < 1 << (16 - TYPE_BITS));
/// The longest key of an object, in bytes: with the number of its type it fits into an item's key.
pub const OBJECT_KEY_MAX: usize = 250;

/// Memory for an object that is made to check the arguments of `create`, in bytes.
const CREATE_BYTES: usize = 1 << 20;
/// The time at which that object is made: 2026-01-01T00:00:00Z.
const CREATE_AT_MS: u64 = 1_767_225_600_000;

/// The types that are switched on.
#[derive(Debug)]
pub struct Registry {
    settings: Settings,
    zone: Zone,
    /// The host that runs the methods of users' own types.
    host: Option<Arc<dyn Host>>,
    types: Vec<RegisteredType>,
    /// A bit for each byte with which a name of a type begins.
    by_first: [u64; 4],
    by_name: NameTable,
    /// The number of the registry, unique in the process.
    number: u32,
    /// Positions in `types` by the types' numbers.
    by_id: [Option<u8>; IDS],
    /// See [`Registry::of_trial`].
    is_trial: bool,
    /// Names with unknown methods that were reported.
    said: stray::Reports,
}

/// A type that is switched on.
#[derive(Debug)]
struct RegisteredType {
    object_type: &'static ObjectType,
    settings: TypeSettings,
    /// The position among the types of the host, if it is one of these.
    of_host: Option<usize>,
    /// The numbers of the methods, by their positions.
    numbers: Box<[u16]>,
    /// The methods by name; those that every object has are last.
    methods: NameTable,
    /// The method `new`, if the type has arguments in `create`.
    new: Option<&'static Method>,
}

impl Registry {
    /// A registry of the types that these settings switch on, all of which are shipped.
    ///
    /// # Errors
    /// An unknown type, arguments of `create` that its `new` refuses, or an unknown zone.
    pub fn new(settings: Settings) -> Result<Self, String> {
        Self::with_host(settings, None)
    }

    /// A registry like that of [`Registry::new`], with users' own types, which replace shipped types of the
    /// same name.
    ///
    /// # Errors
    /// Those of [`Registry::new`].
    ///
    /// # Panics
    /// If the host changes its types meanwhile.
    pub fn with_host(settings: Settings, host: Option<Arc<dyn Host>>) -> Result<Self, String> {
        let mut types = Vec::new();
        let mut by_first = [0_u64; 4];
        let mut by_id = [None; IDS];
        for own in &settings.types {
            let mut of_host =
                host.iter().flat_map(|host| host.types()).map(|one| one.object_type).enumerate();
            let of_host = of_host.find(|(_, one)| one.name == own.name);
            let shipped = native::TYPES.iter().position(|one| one.name == own.name);
            let (object_type, numbers) = match (of_host, shipped) {
                (Some((_, object_type)), _) => (object_type, Self::numbers_of_host(object_type)?),
                (None, Some(place)) => {
                    let before = native::TYPES[..place].iter();
                    let first: usize = before.map(|one| one.methods.len() + native::RESERVED.len()).sum();
                    let count = Self::methods(native::TYPES[place]).count();
                    (native::TYPES[place], (first..first + count).map(|number| number as u16).collect())
                }
                (None, None) => return Err(format!("objects: no type {:?}", own.name)),
            };
            let new = object_type.methods.iter().find(|method| method.name == "new");
            by_id[usize::from(object_type.id)] = Some(types.len() as u8);
            let first = usize::from(object_type.name.as_bytes()[0]);
            by_first[first / 64] |= 1 << (first % 64);
            let methods = NameTable::new(Self::methods(object_type).map(|method| method.name));
            let of_host = of_host.map(|(place, _)| place);
            types.push(RegisteredType { object_type, settings: own.clone(), of_host, numbers, methods, new });
        }
        let by_name = NameTable::new(types.iter().map(|entry| entry.object_type.name));
        let number = NUMBERS.fetch_add(1, Relaxed);
        let zone = Zone::named(&settings.timezone)?;
        let registry = Self {
            settings,
            zone,
            host,
            types,
            by_first,
            by_name,
            number,
            by_id,
            is_trial: false,
            said: stray::Reports::default(),
        };
        (0..registry.types.len()).try_for_each(|place| registry.try_create(place))?;
        Ok(registry)
    }

    /// The same registry for a trial, whose objects are gone before its host: it is never in force.
    #[must_use]
    pub fn of_trial(self) -> Self {
        Self { is_trial: true, ..self }
    }

    /// Notes that there may be objects of these types from now on. Before that, only the host keeps the
    /// numbers of users' own types.
    pub fn put_in_force(&self) {
        let of_host = self.types.iter().filter(|entry| entry.of_host.is_some() && !self.is_trial);
        of_host.for_each(|entry| definitions::keep_forever(entry.object_type));
    }

    fn numbers_of_host(object_type: &'static ObjectType) -> Result<Box<[u16]>, String> {
        let first = Self::methods_max();
        let number = |method: &Method| definitions::number(object_type.name, method.name);
        let numbers = Self::methods(object_type).map(|method| number(method).map(|own| (first + own) as u16));
        numbers.collect::<Option<_>>().ok_or_else(|| format!("objects: {} was not defined", object_type.name))
    }

    /// Makes an object with the arguments of `create`, and drops it.
    ///
    /// # Errors
    /// The arguments are refused.
    fn try_create(&self, place: usize) -> Result<(), String> {
        let own = &self.types[place].settings;
        let Some(create) = &own.create else { return Ok(()) };
        if self.types[place].of_host.is_some() {
            // The host has checked it.
            return Ok(());
        }
        let wrong = |text: &str| Err(format!("[objects.{}]: create: {text}", own.name));
        let Some(id) = self.method(place, b"new") else { return wrong("the type has no method new") };
        let Ok(memory) = Memory::new(CREATE_BYTES) else { return wrong("there is no memory to try it") };
        let (mut new, mut out) = (Vec::new(), Vec::new());
        let object = Object::new(b"k", ObjectState::Absent, &mut new, &memory, None);
        let arguments = Arguments::of(create.iter().map(Vec::as_slice));
        let done = self.call(id, object, &arguments, CREATE_AT_MS, 0, &mut out);
        match (done.outcome, done.change) {
            (ObjectOutcome::Error(line), _) => wrong(line.split_once(": ").map_or(&*line, |(_, text)| text)),
            (_, StateChange::None | StateChange::Dropped) => wrong("new refuses these arguments"),
            _ => Ok(()),
        }
    }

    /// The settings of objects in the rule file.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The types, in the order of the settings.
    pub fn types(&self) -> impl Iterator<Item = &'static ObjectType> + '_ {
        self.types.iter().map(|entry| entry.object_type)
    }

    /// The methods of a type; those that every object has are last.
    pub fn methods(object_type: &'static ObjectType) -> impl Iterator<Item = &'static Method> {
        object_type.methods.iter().chain(native::RESERVED)
    }

    /// The number of methods of all shipped types, switched on or not.
    pub fn methods_max() -> usize {
        native::TYPES.iter().map(|one| one.methods.len() + native::RESERVED.len()).sum()
    }

    /// The type and the method with this number, which is below [`Registry::methods_max`].
    pub fn numbered(number: usize) -> Option<(&'static ObjectType, &'static Method)> {
        let all = native::TYPES.iter().flat_map(|one| Self::methods(one).map(move |method| (*one, method)));
        all.into_iter().nth(number)
    }

    /// The numbers of methods are below this; those of users' own types follow the shipped ones.
    pub fn numbers_max() -> usize {
        Self::methods_max() + definitions::SCRIPT_METHODS_MAX
    }

    /// The methods of a type that is switched on, with their numbers.
    pub fn numbered_methods(&self, type_id: u16) -> impl Iterator<Item = (usize, &'static Method)> + '_ {
        let entry = self.entry_of(type_id).into_iter();
        entry.flat_map(|entry| {
            entry.numbers.iter().map(|number| usize::from(*number)).zip(Self::methods(entry.object_type))
        })
    }

    /// The method and its host, if a host runs it.
    #[inline]
    pub fn script(&self, id: MethodId) -> Option<HostedMethod<'_>> {
        let entry = &self.types[usize::from(id.object_type)];
        let object_type = entry.of_host?;
        let host = &**self.host.as_ref()?;
        let place = usize::from(id.method);
        let methods = &host.types()[object_type].methods;
        let (method, about) = match methods.get(place) {
            Some(about) => (ScriptMethodId::Own(place), about),
            None if definition(entry, place).name == "dump" => (ScriptMethodId::Dump, &DUMP),
            None => return None,
        };
        Some(HostedMethod { host, object_type, method, about, settings: &entry.settings, zone: &self.zone })
    }

    /// Applies the changes of a host's method to an object.
    ///
    /// # Errors
    /// There is no room; nothing has changed then.
    pub fn commit(
        &self,
        mut object: Object<'_>,
        new: &NewState,
        expires_ms: Option<Option<u64>>,
    ) -> CallResult {
        match fields::apply(&mut object, new) {
            Ok(()) => CallResult {
                outcome: ObjectOutcome::Value { flags: 0 },
                change: object.finish().0,
                expires_ms,
            },
            Err(error) => {
                let outcome = match error {
                    CallError::NoRoom(bytes) => ObjectOutcome::NoRoom(bytes),
                    CallError::Server(text) | CallError::Client(text) => {
                        ObjectOutcome::Error(format!("SERVER_ERROR {text}"))
                    }
                };
                CallResult { outcome, change: StateChange::None, expires_ms: None }
            }
        }
    }

    /// The host of users' own types.
    pub fn host(&self) -> Option<&Arc<dyn Host>> {
        self.host.as_ref()
    }

    /// Whether this is the number of a type that is switched on.
    pub fn has_type(&self, type_id: u16) -> bool {
        self.entry_of(type_id).is_some()
    }

    /// The settings of a type that is switched on.
    pub fn type_settings(&self, type_id: u16) -> Option<&TypeSettings> {
        self.entry_of(type_id).map(|entry| &entry.settings)
    }

    /// Whether objects of this type are never evicted.
    pub fn is_pinned(&self, type_id: u16) -> bool {
        self.type_settings(type_id).is_some_and(|own| own.evict == Eviction::Never)
    }

    /// The name of an object as clients write it: `type::key` with the prefix, which [`Registry::named`]
    /// reads as this object. None: the type is not switched on.
    pub fn object_name(&self, type_id: u16, key: &[u8]) -> Option<Vec<u8>> {
        let object_type = self.entry_of(type_id)?.object_type;
        let behind = self.settings.prefixes.text(prefix_of(type_id));
        let mut name = [behind, &self.settings.prefix, object_type.name.as_bytes(), b"::"].concat();
        escape_key(key, &mut name);
        Some(name)
    }

    /// The name of a type; empty: it is not switched on.
    pub fn type_name(&self, type_id: u16) -> &'static str {
        self.entry_of(type_id).map_or("", |entry| entry.object_type.name)
    }

    /// Reads a key as the name of an object or a call. None: it is an ordinary key.
    #[inline]
    pub fn named<'k>(&self, key: &'k [u8]) -> Option<VirtualKey<'k>> {
        let (behind, name) = self.settings.prefixes.split(key);
        let name = name.strip_prefix(&*self.settings.prefix)?;
        let first = usize::from(*name.first()?);
        if self.by_first[first / 64] >> (first % 64) & 1 == 0 {
            return None;
        }
        self.read(name, behind)
    }

    /// Reads a key like [`Registry::named`], with the result of [`Registry::spot`] for this key.
    pub fn named_at<'k>(&self, key: &'k [u8], spot: Option<Spot>) -> Option<VirtualKey<'k>> {
        match spot.filter(|spot| spot.registry == self.number) {
            Some(Spot { type_id, method, rest, .. }) => {
                let rest = (rest != 0).then(|| &key[usize::from(rest)..]);
                Some(VirtualKey::Call(CallName { type_id, method, rest }))
            }
            None => self.named(key),
        }
    }

    /// The position of a call's parts in a key of up to 65,535 bytes, in a form that outlives the key. None:
    /// the key does not name a call.
    #[inline]
    pub fn spot(&self, named: &VirtualKey<'_>, key: &[u8]) -> Option<Spot> {
        let VirtualKey::Call(CallName { type_id, method, rest }) = *named else { return None };
        let rest = rest.map_or(0, |rest| key.len() - rest.len());
        Some(Spot { registry: self.number, type_id, method, rest: u16::try_from(rest).ok()? })
    }

    fn read<'k>(&self, name: &'k [u8], behind: PrefixId) -> Option<VirtualKey<'k>> {
        let end = colon(&name[..name.len().min(TYPE_NAME_MAX + 1)])?;
        let (type_name, rest) = (&name[..end], &name[end + 1..]);
        let place = self.by_name.find(type_name, |place| self.types[place].object_type.name)?;
        let type_id = self.types[place].object_type.id | u16::from(behind.number()) << TYPE_BITS;
        let (method, rest) = match colon(rest) {
            Some(0) => {
                return (rest.len() > 1).then(|| VirtualKey::Object { type_id, key: unescaped(&rest[1..]) });
            }
            Some(colon) => (&rest[..colon], Some(&rest[colon + 1..])),
            None => (rest, None),
        };
        let method = self.method(place, method)?;
        Some(VirtualKey::Call(CallName { type_id, method, rest }))
    }

    /// The method with this name of a type.
    pub fn method_of(&self, type_id: u16, name: &[u8]) -> Option<MethodId> {
        self.method(self.place_of(type_id)?, name)
    }

    fn method(&self, place: usize, name: &[u8]) -> Option<MethodId> {
        let entry = &self.types[place];
        let method = entry.methods.find(name, |method| definition(entry, method).name)?;
        Some(MethodId { object_type: place as u16, method: method as u16 })
    }

    /// Splits a call's name into the object's key and the arguments. `buffer`: memory for parts with escapes.
    ///
    /// # Errors
    /// The line to answer.
    pub fn split<'b>(
        &self,
        name: &CallName<'b>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<(&'b [u8], Arguments<'b>), String> {
        let Some(rest) = name.rest else { return Ok((&[], Arguments::none())) };
        let mut parts = Arguments::none();
        let (mut key, mut from, mut is_escaped) = (None, 0, false);
        // The text is a few bytes, for which a loop is cheaper than a search.
        for (at, byte) in rest.iter().enumerate() {
            match byte {
                b'%' => {
                    is_escaped = true;
                    break;
                }
                b':' => {
                    let part = &rest[from..at];
                    from = at + 1;
                    if key.is_none() {
                        key = Some(part);
                    } else if !parts.push(part) {
                        return Err(self.too_many(name.method));
                    }
                }
                _ => {}
            }
        }
        if !is_escaped {
            let last = &rest[from..];
            let Some(key) = key else { return Ok((last, parts)) };
            return if parts.push(last) { Ok((key, parts)) } else { Err(self.too_many(name.method)) };
        }
        parts = Arguments::none();
        buffer.clear();
        let mut ends = Vec::new();
        for part in rest.split(|byte| *byte == b':') {
            unescape(part, buffer);
            ends.push(buffer.len());
        }
        let buffer: &'b [u8] = buffer;
        let mut from = ends[0];
        for end in &ends[1..] {
            if !parts.push(&buffer[from..*end]) {
                return Err(self.too_many(name.method));
            }
            from = *end;
        }
        Ok((&buffer[..ends[0]], parts))
    }

    fn too_many(&self, id: MethodId) -> String {
        self.client_error(id, "too many arguments")
    }

    /// The error line for a mistake of the client.
    pub fn client_error(&self, id: MethodId, text: &str) -> String {
        let (object_type, method) = self.names(id);
        format!("CLIENT_ERROR {object_type}.{method}: {text}")
    }

    /// The names of the type and the method.
    pub fn names(&self, id: MethodId) -> (&'static str, &'static str) {
        (self.types[usize::from(id.object_type)].object_type.name, self.definition(id).name)
    }

    /// The method's number among all methods, below [`Registry::numbers_max`].
    #[inline]
    pub fn number(&self, id: MethodId) -> usize {
        usize::from(self.types[usize::from(id.object_type)].numbers[usize::from(id.method)])
    }

    /// The definition of the method.
    pub fn definition(&self, id: MethodId) -> &'static Method {
        definition(&self.types[usize::from(id.object_type)], usize::from(id.method))
    }

    /// Whether a call of the method with this number of arguments neither changes nor makes an object.
    pub fn only_reads(&self, id: MethodId, arguments: usize) -> bool {
        let entry = &self.types[usize::from(id.object_type)];
        if entry.settings.create.is_some() && self.definition(id).absent == OnAbsent::Miss {
            // This call makes an absent object.
            return false;
        }
        match (self.names(id), self.script(id)) {
            ((_, "exists" | "dump" | "size" | "methods"), _) => true,
            ((_, "ttl"), _) => arguments == 0,
            (_, Some(script)) => script.about.reads,
            (names, None) => READING.contains(&names),
        }
    }

    /// Whether the method concerns the type and not an object: `type:methods`.
    pub fn is_about_type(&self, id: MethodId) -> bool {
        self.definition(id).name == "methods"
    }

    /// Executes a call on an object. `now_ms`: Unix time in milliseconds; `random`: a number that differs in
    /// each call; the value of the reply is appended to `out`.
    pub fn call(
        &self,
        id: MethodId,
        mut object: Object<'_>,
        arguments: &Arguments<'_>,
        now_ms: u64,
        random: u64,
        out: &mut Vec<u8>,
    ) -> CallResult {
        let from = out.len();
        let entry = &self.types[usize::from(id.object_type)];
        let mut context = CallContext {
            now_ms,
            random,
            settings: &self.settings,
            own: &entry.settings,
            zone: &self.zone,
            out,
        };
        let replied = self.run(id, entry, &mut object, arguments, &mut context);
        let (change, expires_ms) = object.finish();
        let flags = if matches!(replied, Ok(MethodReply::Json)) { self.settings.json_flags } else { 0 };
        let outcome = match replied {
            Ok(MethodReply::Value | MethodReply::Json) if out.len() - from > self.settings.result_max => {
                ObjectOutcome::Error("SERVER_ERROR result too large".to_owned())
            }
            Ok(MethodReply::Value | MethodReply::Json) => ObjectOutcome::Value { flags },
            Ok(MethodReply::Miss) => ObjectOutcome::Miss,
            Ok(MethodReply::List(listing)) => {
                let flags = listing.flags(self.settings.json_flags);
                ObjectOutcome::List { listing: Box::new(listing), flags }
            }
            Err(CallError::Client(text)) => ObjectOutcome::Error(self.client_error(id, &text)),
            Err(CallError::Server(text)) => ObjectOutcome::Error(format!("SERVER_ERROR {text}")),
            Err(CallError::NoRoom(bytes)) => ObjectOutcome::NoRoom(bytes),
        };
        if matches!(outcome, ObjectOutcome::Error(_) | ObjectOutcome::NoRoom(_)) {
            out.truncate(from);
            return CallResult { outcome, change: StateChange::None, expires_ms: None };
        }
        CallResult { outcome, change, expires_ms }
    }

    fn run(
        &self,
        id: MethodId,
        entry: &RegisteredType,
        object: &mut Object<'_>,
        arguments: &Arguments<'_>,
        context: &mut CallContext<'_>,
    ) -> Result<MethodReply, CallError> {
        let method = self.definition(id);
        let (least, most) = method.arguments;
        if !(least..=most).contains(&arguments.len()) {
            return Err(CallError::Client(expected_arguments(method)));
        }
        if method.name == "methods" {
            for method in Self::methods(entry.object_type) {
                context.out.extend_from_slice(method.name.as_bytes());
                context.out.extend_from_slice(b"\r\n");
            }
            return Ok(MethodReply::Value);
        }
        if method.absent == OnAbsent::Miss && !object.exists() {
            let (Some(create), Some(new)) = (&entry.settings.create, entry.new) else {
                return Ok(absent(context));
            };
            let from = context.out.len();
            let Some(run) = new.run else { return Ok(absent(context)) };
            let made = run(object, &Arguments::of(create.iter().map(Vec::as_slice)), context)?;
            context.out.truncate(from);
            if matches!(made, MethodReply::Miss) || !object.exists() {
                return Ok(absent(context));
            }
        }
        if method.name == "dump"
            && let Some(dump) = entry.object_type.dump
        {
            let mut text = Vec::new();
            dump(object.view(), context, &mut text);
            context.out.extend_from_slice(&text);
            return Ok(MethodReply::Json);
        }
        let run = method.run.expect("the engine hands a host's methods to the host");
        run(object, arguments, context)
    }

    fn entry_of(&self, type_id: u16) -> Option<&RegisteredType> {
        self.types.get(self.place_of(type_id)?)
    }

    fn place_of(&self, type_id: u16) -> Option<usize> {
        let place = *self.by_id.get(usize::from(type_of(type_id)))?;
        place.map(usize::from)
    }
}

/// The prefix of an object, from the number in its item.
pub fn prefix_of(type_id: u16) -> PrefixId {
    // The prefix has as many bits as fit.
    PrefixId::of_number((type_id >> TYPE_BITS) as u8)
}

/// The number of an object's type, from the number in its item, which also has the prefix.
pub fn type_of(type_id: u16) -> u16 {
    type_id & ((1 << TYPE_BITS) - 1)
}

/// The methods of shipped types that only read, besides those that every object has.
const READING: &[(&str, &str)] = &[
    ("bloom", "has"),
    ("bloom", "count"),
    ("board", "score"),
    ("board", "rank"),
    ("board", "count"),
    ("board", "top"),
    ("board", "bottom"),
    ("board", "around"),
    ("board", "range"),
    ("bucket", "peek"),
    ("consistent", "findServerForKey"),
    ("consistent", "findserverforkey"),
    ("consistent", "getServerCount"),
    ("consistent", "getservercount"),
    ("consistent", "isServerAvailable"),
    ("consistent", "isserveravailable"),
    ("counter", "get"),
    ("gcra", "peek"),
    ("hll", "count"),
    ("hll", "merge"),
    ("hll", "sketch"),
    ("lock", "holder"),
    ("map", "get"),
    ("map", "exist"),
    ("map", "count"),
    ("map", "getkeys"),
    ("map", "getvalues"),
    ("map", "getall"),
    ("queue", "peek"),
    ("queue", "len"),
    ("queue", "all"),
    ("quota", "peek"),
    ("recent", "list"),
    ("recent", "count"),
    ("sem", "count"),
    ("sem", "list"),
    ("set", "exist"),
    ("set", "count"),
    ("set", "getall"),
    ("set", "union"),
    ("set", "intersection"),
    ("set", "diff"),
    ("set", "random"),
    ("sliding", "count"),
    ("swcounter", "getlast"),
    ("swcounter", "getmin"),
    ("swcounter", "getmax"),
    ("swcounter", "getavg"),
    ("swcounter", "getsum"),
    ("swcounter", "getp"),
    ("topk", "list"),
    ("topk", "count"),
];

/// The method `dump` of a host's type.
static DUMP: ScriptMethod = ScriptMethod { reads: true, keys: Vec::new() };

/// A method that a host runs.
#[derive(Debug, Clone, Copy)]
pub struct HostedMethod<'r> {
    /// The host.
    pub host: &'r dyn Host,
    /// The position of the type among the host's.
    pub object_type: usize,
    /// The method.
    pub method: ScriptMethodId,
    /// The properties of the method.
    pub about: &'r ScriptMethod,
    /// The settings of the type, from its source and the rule file.
    pub settings: &'r TypeSettings,
    /// The zone in which days begin.
    pub zone: &'r Zone,
}

/// The method at a position of a type.
#[inline]
fn definition(entry: &RegisteredType, place: usize) -> &'static Method {
    let own = entry.object_type.methods;
    own.get(place).unwrap_or_else(|| &native::RESERVED[place - own.len()])
}

/// The position of the first colon. Names are short, so that a loop is cheaper than `memchr`.
#[inline]
fn colon(text: &[u8]) -> Option<usize> {
    text.iter().position(|byte| *byte == b':')
}

/// Replies that there is no object, without making one.
pub(crate) fn absent(context: &mut CallContext<'_>) -> MethodReply {
    if context.settings.compat { context.text(CACHE_MISS) } else { MethodReply::Miss }
}

/// The number of arguments that the method takes, in words.
fn expected_arguments(method: &Method) -> String {
    if method.usage.is_empty() { "takes no arguments".to_owned() } else { format!("takes {}", method.usage) }
}
