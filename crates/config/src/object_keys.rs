//! The keys of `[objects]` and `[objects.TYPE]`: see `keys.rs`.

use cattlegrid_objects::{Eviction, TypeSettings};

use crate::keys::{Key, choice, key, list, number, refused, seconds, toml_text};
use crate::objects::{Objects, ObjectsDraft};
use crate::table::set;
use crate::value::{DAY, Kind, show_size};

/// Why a key of types of one's own cannot be used.
const NO_SCRIPTS: &str = "is for types of your own, which this version does not have; leave it out";

#[rustfmt::skip]
pub(crate) const OBJECTS: &[Key<ObjectsDraft, Objects>] = &[
    key("dir", Kind::Free { what: "directory", max: 4095 }, "",
        "A directory for transcripts (`*.memc`); a relative path begins at the directory of the rule file. Types of your own (`*.luau`, `*.lua`) are not part of this version: a directory that has any is an error.",
        set!(dir, given => Some(given.placed().clone())),
        |objects| objects.dir.as_ref().and_then(|dir| dir.to_str()).map(toml_text)),
    key("types", Kind::List { what: "names of types" }, "all",
        "The types that are switched on. Names that begin with any other are ordinary keys.",
        set!(types, given => Some(given.list().to_vec())),
        |objects| Some(list(objects.settings.types.iter().map(|own| own.name.as_str())))),
    key("prefix", Kind::Text { what: "prefix", max: 16 }, "\"\"",
        "What names of calls and objects begin with. Neither it nor `control` may begin with the other.",
        set!(prefix, given => given.text().to_owned()),
        |objects| Some(toml_text(&String::from_utf8_lossy(&objects.settings.prefix)))),
    key("pinned_max", Kind::Size { min: 0, max: 1 << 40 }, "1/16 of the memory limit",
        "Memory for objects that are never evicted, at most half of the memory limit. While it is full no more of them are made.",
        set!(pinned_bytes, given => Some(given.bytes())),
        |objects| Some(format!("\"{}\"", show_size(objects.settings.pinned_max as u64)))),
    key("timezone", Kind::Text { what: "name of a time zone", max: 64 }, "\"UTC\"",
        "The zone in which days, weeks and months begin, such as \"Europe/Berlin\".",
        set!(timezone, given => Some(given.placed().clone())),
        |objects| Some(toml_text(&objects.settings.timezone))),
    key("json_flags", number(0, u32::MAX as i64), "0",
        "Client flags of replies in JSON.",
        set!(json_flags, given => given.number()),
        |objects| Some(objects.settings.json_flags.to_string())),
    key("compat", choice(&["", "cacheismo"]), "\"\"",
        "\"cacheismo\": replies as Cacheismo's objects give them. An absent object answers ERROR_CACHE_MISS, a refused `new` NOT_CREATED, and `get` of a map `k : v`.",
        set!(compat, given => given.text() == "cacheismo"),
        |objects| Some(toml_text(if objects.settings.compat { "cacheismo" } else { "" }))),
    refused("time_limit", NO_SCRIPTS),
    refused("memory_limit", NO_SCRIPTS),
    refused("state_max", NO_SCRIPTS),
];

#[rustfmt::skip]
pub(crate) const OBJECT_TYPE: &[Key<TypeSettings, TypeSettings>] = &[
    key("evict", choice(&["normal", "never"]), "\"normal\"",
        "never: objects of the type are not evicted, within `pinned_max`; flushes and times to live end them as others.",
        set!(evict, given => if given.text() == "never" { Eviction::Never } else { Eviction::Normal }),
        |own| Some(match own.evict {
            Eviction::Normal => "\"normal\"",
            Eviction::Never => "\"never\"",
        }.to_owned())),
    key("ttl", Kind::Seconds { max: 3650 * DAY }, "\"0s\"",
        "How long a new object lives. 0: for ever, or as its method says.",
        set!(ttl_s, given => given.seconds()),
        |own| Some(seconds(own.ttl_s))),
    key("create", Kind::Words { what: "arguments of `new`" }, "",
        "With it, a method that needs an object makes an absent one first, with these arguments.",
        set!(create, given => Some(given.list().iter().map(|word| word.text.clone().into_bytes()).collect())),
        |own| own.create.as_ref().map(|create| {
            let words: Vec<_> = create.iter().map(|word| String::from_utf8_lossy(word)).collect();
            list(words.iter().map(|word| &**word))
        })),
];
