//! Names that would be calls if their method existed, such as `sliding:reset:z`. Each is an ordinary key, and
//! usually a mistake, by which a limit has no effect.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::{Registry, TYPE_NAME_MAX, colon};

/// The most names that are remembered; further ones are not reported.
const SAID_MAX: usize = 64;
/// The longest name of a method, in bytes.
const METHOD_NAME_MAX: usize = 18;

/// The name of a type, and a name that is not one of its methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    type_name: &'static str,
    method: String,
    /// The methods of the type.
    methods: Vec<&'static str>,
}

/// The names that were reported.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Vec<(&'static str, String)>>);

impl Registry {
    /// Whether a key begins like a call of a type that is switched on, with an unknown method; None: it does
    /// not.
    pub fn stray(&self, key: &[u8]) -> Option<Stray> {
        let (_, name) = self.settings.prefixes.split(key);
        let name = name.strip_prefix(&*self.settings.prefix)?;
        let first = usize::from(*name.first()?);
        if self.by_first[first / 64] >> (first % 64) & 1 == 0 {
            return None;
        }
        let end = colon(&name[..name.len().min(TYPE_NAME_MAX + 1)])?;
        let (type_name, rest) = (&name[..end], &name[end + 1..]);
        let place = self.by_name.find(type_name, |place| self.types[place].object_type.name)?;
        let method = &rest[..colon(&rest[..rest.len().min(METHOD_NAME_MAX + 1)])?];
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let is_name = method.first()?.is_ascii_alphabetic() && method.iter().all(is_word);
        if !is_name || rest.len() == method.len() + 1 || self.method(place, method).is_some() {
            return None;
        }
        let object_type = self.types[place].object_type;
        let method = String::from_utf8_lossy(method).into_owned();
        let methods = Self::methods(object_type).map(|method| method.name).collect();
        Some(Stray { type_name: object_type.name, method, methods })
    }

    /// Whether a name with this type and method was not reported before; it counts as reported from now on.
    pub fn is_new_stray(&self, stray: &Stray) -> bool {
        let mut said = self.said.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |(type_name, method): &(&str, String)| *type_name == stray.type_name && *method == stray.method;
        if said.len() == SAID_MAX || said.iter().any(is_same) {
            return false;
        }
        said.push((stray.type_name, stray.method.clone()));
        true
    }
}

impl Stray {
    /// The method with the most similar name: the fewest letters inserted, deleted or replaced.
    pub fn nearest(&self) -> &'static str {
        let lower = self.method.to_ascii_lowercase();
        let distance = |name: &&&str| edits(lower.as_bytes(), name.to_ascii_lowercase().as_bytes());
        self.methods.iter().min_by_key(distance).copied().unwrap_or_default()
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { type_name, method, methods } = self;
        write!(
            f,
            "{type_name} has no method {method}: {type_name}:{method}:KEY is an ordinary key. The nearest method is {}; there are {}",
            self.nearest(),
            methods.join(", ")
        )
    }
}

/// The edit distance of two texts in bytes (Wagner and Fischer, 1974).
fn edits(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (place, byte) in one.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], place + 1);
        for (at, own) in other.iter().enumerate() {
            let replaced = before + usize::from(byte != own);
            before = row[at + 1];
            row[at + 1] = replaced.min(before + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn slips_have_a_nearest_method() {
        let registry = Registry::new(Settings::default()).unwrap();
        for (key, nearest) in [
            ("quota:addandchek:alice:1", "addandcheck"),
            ("quota:AddAndCheck:alice", "addandcheck"),
            ("sliding:hits:z:1:60s", "hit"),
            ("set:exsit:s:a", "exist"),
            ("consistent:findServer4Key:c:k", "findServerForKey"),
            ("lock:realease:l:o", "release"),
        ] {
            let stray = registry.stray(key.as_bytes()).unwrap();
            assert_eq!(stray.nearest(), nearest, "{key}");
        }
        let stray = registry.stray(b"sliding:reset:z").unwrap();
        let text = stray.to_string();
        assert!(
            text.starts_with("sliding has no method reset: sliding:reset:KEY is an ordinary key."),
            "{text}"
        );
        assert!(text.ends_with("there are hit, count, drop, ttl, exists, dump, size, methods"), "{text}");
        assert!(registry.is_new_stray(&stray) && !registry.is_new_stray(&stray), "said once");
        let other = registry.stray(b"sliding:reset:another").unwrap();
        assert!(!registry.is_new_stray(&other), "of another key either");
    }

    #[test]
    fn other_keys_are_none() {
        let registry = Registry::new(Settings::default()).unwrap();
        for key in [
            "sliding:hit:z:1:60s",
            "sliding::z",
            "sliding:reset",
            "sliding:reset:",
            "sliding:",
            "slidin:reset:z",
            "set:x",
            "set:1:x",
            "set:a-b:x",
            "print:1",
            "set:averyveryverylongname:x",
            "",
            ":",
            "set",
            "next:page:1",
        ] {
            assert_eq!(registry.stray(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn there_is_an_end_of_what_is_said() {
        let registry = Registry::new(Settings::default()).unwrap();
        let new =
            |n: usize| registry.is_new_stray(&registry.stray(format!("set:m{n}:k").as_bytes()).unwrap());
        assert_eq!((0..1000).filter(|n| new(*n)).count(), SAID_MAX);
    }
}
