//! The settings of objects, from the rule file.

use cattlegrid_tags::Prefixes;

/// `[objects]`: see [`crate::Registry::new`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The types that are switched on.
    pub types: Vec<TypeSettings>,
    /// The text with which names of objects begin; may be empty.
    pub prefix: Vec<u8>,
    /// The prefixes that clients put before each key, and so before `prefix`. Each has its own objects.
    pub prefixes: Prefixes,
    /// The most bytes of all objects that are never evicted.
    pub pinned_max: usize,
    /// The zone in which days, weeks and months begin: a name in the IANA database.
    pub timezone: String,
    /// The client flags of replies in JSON.
    pub json_flags: u32,
    /// Whether replies have Cacheismo's form where the two differ.
    pub compat: bool,
    /// The longest result, in bytes.
    pub result_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            types: crate::native::TYPES.iter().map(|one| TypeSettings::new(one.name)).collect(),
            prefix: Vec::new(),
            prefixes: Prefixes::default(),
            pinned_max: 4 << 20,
            timezone: "UTC".to_owned(),
            json_flags: 0,
            compat: false,
            result_max: 1 << 20,
        }
    }
}

/// `[objects.TYPE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeSettings {
    /// The type's name.
    pub name: String,
    /// Whether the type's objects may be evicted.
    pub evict: Eviction,
    /// The time to live of a new object in seconds; 0: for ever, or set by its method.
    pub ttl_s: u32,
    /// The arguments of `new`, by which any method makes an absent object; None: methods do not make objects.
    pub create: Option<Vec<Vec<u8>>>,
}

impl TypeSettings {
    /// The defaults of a type.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), evict: Eviction::Normal, ttl_s: 0, create: None }
    }
}

/// Whether objects of a type may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// They may, as any item.
    #[default]
    Normal,
    /// They stay until they are dropped, expire or are flushed.
    Never,
}
