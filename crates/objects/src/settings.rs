//! What the rule file says about objects.

use cattlegrid_tags::Prefixes;

/// `[objects]`: see [`crate::Registry::new`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The types that are switched on.
    pub types: Vec<TypeSettings>,
    /// Names of objects begin with this; may be empty.
    pub prefix: Vec<u8>,
    /// What clients put before every key, and so before `prefix`: each has objects of its own.
    pub prefixes: Prefixes,
    /// Bytes of objects that are never evicted, in all.
    pub pinned_max: usize,
    /// The zone in which days, weeks and months begin, a name of the IANA database.
    pub timezone: String,
    /// Client flags of replies in JSON.
    pub json_flags: u32,
    /// Replies in the form of Cacheismo where the two differ.
    pub compat: bool,
    /// Longest result in bytes.
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
    /// Whether its objects may be evicted.
    pub evict: Eviction,
    /// Seconds that a new object lives; 0: for ever, or as its method says.
    pub ttl_s: u32,
    /// The arguments of `new` with which an absent object is made by any of its methods.
    pub create: Option<Vec<Vec<u8>>>,
}

impl TypeSettings {
    /// The defaults of a type.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), evict: Eviction::Normal, ttl_s: 0, create: None }
    }
}

/// What eviction does with objects of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// As any item.
    #[default]
    Normal,
    /// They stay until they are dropped, expire or are flushed.
    Never,
}
