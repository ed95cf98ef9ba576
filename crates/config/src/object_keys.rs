//! The keys of `[objects]` and `[objects.TYPE]`: see `keys.rs`.

use cattlegrid_objects::{Eviction, TypeSettings};

use crate::keys::{TableKey, choice, key, list, number, seconds, toml_text};
use crate::objects::{Objects, ObjectsDraft, TypeTable};
use crate::table::{Class, set};
use crate::value::{DAY, SECOND, ValueKind, show_ms, show_size};

#[rustfmt::skip]
pub(crate) const OBJECTS: &[TableKey<ObjectsDraft, Objects>] = &[
    key("dir", ValueKind::Free { what: "directory", max: 4095 }, "",
        "The directory of types of your own: `NAME.luau` or `NAME.lua` is the type NAME. A relative path begins at the directory of the rule file. Before the types are used, all sources are checked and their tests (`*.test.luau`) are run; transcripts (`*.memc`) are run by `cattlegrid objects test` only. Sources in folders of it are for `require`, and are checked and tested as others; links to folders are refused.",
        set!(dir, given => Some(given.placed().clone())),
        |objects| objects.dir.as_ref().and_then(|dir| dir.to_str()).map(toml_text)),
    key("types", ValueKind::List { what: "names of types" }, "all",
        "The types that are switched on, those of `dir` included. Names that begin with any other are ordinary keys.",
        set!(types, given => Some(given.list().to_vec())),
        |objects| Some(list(objects.settings.types.iter().map(|own| own.name.as_str())))),
    key("prefix", ValueKind::Text { what: "prefix", max: 16 }, "\"\"",
        "What names of calls and objects begin with. Neither it nor `control` may begin with the other.",
        set!(prefix, given => given.text().to_owned()),
        |objects| Some(toml_text(&String::from_utf8_lossy(&objects.settings.prefix)))),
    key("pinned_max", ValueKind::Size { min: 0, max: 1 << 40 }, "1/16 of the memory limit",
        "Memory for objects that are never evicted, at most half of the memory limit. While it is full no more of them are made.",
        set!(pinned_bytes, given => Some(given.bytes())),
        |objects| Some(format!("\"{}\"", show_size(objects.settings.pinned_max as u64)))),
    key("timezone", ValueKind::Text { what: "name of a time zone", max: 64 }, "\"UTC\"",
        "The zone in which days, weeks and months begin, such as \"Europe/Berlin\".",
        set!(timezone, given => Some(given.placed().clone())),
        |objects| Some(toml_text(&objects.settings.timezone))),
    key("json_flags", number(0, u32::MAX as i64), "0",
        "Client flags of replies in JSON.",
        set!(json_flags, given => given.number()),
        |objects| Some(objects.settings.json_flags.to_string())),
    key("compat", choice(&["", "cacheismo"]), "\"\"",
        "\"cacheismo\": replies as Cacheismo's objects give them. An absent object answers ERROR_CACHE_MISS, a refused `new` NOT_CREATED, `get` of a map `k : v`, of an absent key NOT_FOUND; `union`, `intersection` and `diff` with an absent set answer ERROR_CACHE_MISS, and `quota:addandcheck` takes any number. Types of your own answer an absent object and a refused `new` so, and nothing else.",
        set!(compat, given => given.text() == "cacheismo"),
        |objects| Some(toml_text(if objects.settings.compat { "cacheismo" } else { "" }))),
    key("time_limit", ValueKind::Ms { min: 1, max: SECOND }, "\"10ms\"",
        "How long a call of a method in Luau may take. A call that takes longer ends with an error, and its object is as it was.",
        Class::Honoured(|draft, given| draft.of_own_types(|draft| draft.limits.time = given.duration())),
        |objects| objects.of_own_types(format!("\"{}\"", show_ms(objects.limits.time.as_millis() as u64)))),
    key("memory_limit", ValueKind::Size { min: 1 << 20, max: 1 << 30 }, "\"16MiB\"",
        "Memory that a call of such a method may take, on each thread.",
        Class::Honoured(|draft, given| draft.of_own_types(|draft| draft.limits.memory_bytes = given.bytes())),
        |objects| objects.of_own_types(format!("\"{}\"", show_size(objects.limits.memory_bytes as u64)))),
    key("state_max", ValueKind::Size { min: 1 << 10, max: 1 << 20 }, "\"64KiB\"",
        "Largest state of an object of such a type, without its native collections.",
        Class::Honoured(|draft, given| draft.of_own_types(|draft| draft.limits.state_max = given.bytes())),
        |objects| objects.of_own_types(format!("\"{}\"", show_size(objects.limits.state_max as u64)))),
    key("watch", ValueKind::Flag, "false",
        "true: when sources in `dir` have changed, and have stayed as they are for a second, the types are loaded again. Nothing else is read again then, as SIGHUP would.",
        Class::Honoured(|draft, given| draft.of_own_types(|draft| draft.watch = given.flag())),
        |objects| objects.of_own_types(objects.watch.to_string())),
];

#[rustfmt::skip]
pub(crate) const OBJECT_TYPE: &[TableKey<TypeTable, TypeSettings>] = &[
    key("evict", choice(&["normal", "never"]), "\"normal\"",
        "never: objects of the type are not evicted, within `pinned_max`; flushes and times to live end them as others.",
        set!(evict, given => Some(if given.text() == "never" { Eviction::Never } else { Eviction::Normal })),
        |own| Some(match own.evict {
            Eviction::Normal => "\"normal\"",
            Eviction::Never => "\"never\"",
        }.to_owned())),
    key("ttl", ValueKind::Seconds { max: 3650 * DAY }, "\"0s\"",
        "How long a new object lives. 0: for ever, or as its method says.",
        set!(ttl_s, given => Some(given.seconds())),
        |own| Some(seconds(own.ttl_s))),
    key("create", ValueKind::Words { what: "arguments of `new`" }, "",
        "With it, a method that needs an object makes an absent one first, with these arguments.",
        set!(create, given => Some(given.list().iter().map(|word| word.text.clone().into_bytes()).collect())),
        |own| own.create.as_ref().map(|create| {
            let words: Vec<_> = create.iter().map(|word| String::from_utf8_lossy(word)).collect();
            list(words.iter().map(|word| &**word))
        })),
];
