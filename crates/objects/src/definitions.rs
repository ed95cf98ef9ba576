//! Types that are defined at run time: their names, numbers and tables of methods.
//!
//! The number of a type is part of its objects' keys, and the number of a method is the position of its
//! counters. Both belong to the name, so that a type that is loaded again finds its objects and continues its
//! counters. A table that equals an earlier one is reused; a new one takes memory for good.
//!
//! A table is in use while a [`TypeHandle`] refers to it, and for ever once it was in force. When there is no
//! room, names and numbers that only unused tables have are given to new types: refused sources do not use
//! them up.
//!
//! # Invariants
//! * The numbers of a table that was in force are never given to another name, since items carry the number
//!   of their type. Only a registry in force makes items and counts calls, and [`keep_forever`] is called for
//!   its tables before.

use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::method::{Method, ObjectType, OnAbsent, ReadSet};
use crate::native;

/// The first number of users' own types.
pub(crate) const FIRST_ID: u16 = 64;
/// The most names of users' own types that are in force during the life of a process.
pub const TYPES_MAX: usize = 100;
/// The most names of methods of such types.
pub const SCRIPT_METHODS_MAX: usize = 1024;
/// The most methods of a type.
pub const TYPE_METHODS_MAX: usize = 56;
/// The most tables of types.
const TABLES_MAX: usize = 4096;

/// The definition of a method of users' own types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodDefinition {
    /// The name: lower-case letters, digits or `_`.
    pub name: String,
    /// The fewest and the most arguments after the object's key.
    pub arguments: (usize, usize),
    /// The arguments in the form of a table: `limit window [n]`.
    pub usage: String,
    /// Whether the method runs if there is no object, as `new` does.
    pub runs_absent: bool,
}

/// A defined type, which is in use while this exists.
#[derive(Debug)]
pub struct TypeHandle(&'static ObjectType);

impl TypeHandle {
    /// The type. A registry may use it only while it is in use.
    pub fn object_type(&self) -> &'static ObjectType {
        self.0
    }

    /// The type, which stays in use for ever.
    pub fn forever(self) -> &'static ObjectType {
        keep_forever(self.0);
        self.0
    }
}

impl Drop for TypeHandle {
    fn drop(&mut self) {
        if let Some(table) = definitions().table(self.0) {
            table.users -= 1;
        }
    }
}

#[derive(Debug, Default)]
struct Definitions {
    /// The types' names by their numbers, from [`FIRST_ID`] on; None: the number is free.
    names: Vec<Option<&'static str>>,
    /// The names of type and method, by the method's number.
    methods: Vec<Option<(&'static str, &'static str)>>,
    tables: Vec<TypeRecord>,
}

#[derive(Debug)]
struct TypeRecord {
    object_type: &'static ObjectType,
    /// The number of [`TypeHandle`]s that refer to it.
    users: usize,
    /// Whether it is or was in force.
    stays: bool,
}

impl TypeRecord {
    fn is_used(&self) -> bool {
        self.stays || self.users > 0
    }

    fn has(&self, type_name: &str, method: &str) -> bool {
        let own = self.object_type.methods.iter().chain(native::RESERVED);
        self.object_type.name == type_name && own.into_iter().any(|own| own.name == method)
    }
}

static DEFINITIONS: Mutex<Definitions> =
    Mutex::new(Definitions { names: Vec::new(), methods: Vec::new(), tables: Vec::new() });

fn definitions() -> MutexGuard<'static, Definitions> {
    DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Defines a type with these methods, in this order; `name` and the methods' names are lower case. A table
/// that equals an earlier one is reused.
///
/// # Errors
/// The process has defined too many types, methods or tables.
pub fn define(name: &str, methods: &[MethodDefinition]) -> Result<TypeHandle, String> {
    definitions().define(name, methods).map(TypeHandle)
}

/// Keeps the type in use for ever, since from now on there may be items of it.
pub(crate) fn keep_forever(object_type: &'static ObjectType) {
    if let Some(table) = definitions().table(object_type) {
        table.stays = true;
    }
}

impl Definitions {
    /// Finds or makes the table, and counts one more user.
    fn define(&mut self, name: &str, methods: &[MethodDefinition]) -> Result<&'static ObjectType, String> {
        let same =
            |one: &&mut TypeRecord| one.object_type.name == name && is_same(one.object_type.methods, methods);
        if let Some(found) = self.tables.iter_mut().find(same) {
            found.users += 1;
            return Ok(found.object_type);
        }
        if self.has_room(name, methods).is_err() {
            self.forget_unused();
        }
        self.has_room(name, methods)?;
        let known = self.names.iter().position(|own| *own == Some(name));
        let place = known.unwrap_or_else(|| put(&mut self.names, String::from(name).leak()));
        let name = self.names[place].expect("it was found or put there");
        let table: Vec<Method> = methods.iter().map(|method| self.method(name, method)).collect();
        for method in native::RESERVED {
            self.name(name, method.name);
        }
        let object_type: &'static ObjectType = Box::leak(Box::new(ObjectType {
            name,
            id: FIRST_ID + place as u16,
            doc: "A type of your own.",
            methods: table.leak(),
            dump: None,
        }));
        self.tables.push(TypeRecord { object_type, users: 1, stays: false });
        Ok(object_type)
    }

    /// Whether there is room for a type without a table.
    fn has_room(&self, name: &str, methods: &[MethodDefinition]) -> Result<(), String> {
        let restart = |what: &str, most: usize| {
            Err(format!(
                "the server has had {most} {what} of types of your own; start it anew to define others"
            ))
        };
        if self.tables.len() == TABLES_MAX {
            return restart("versions", TABLES_MAX);
        }
        let names = self.names.iter().flatten();
        if !self.names.contains(&Some(name)) && names.count() == TYPES_MAX {
            return restart("names", TYPES_MAX);
        }
        let own = methods.iter().map(|method| &*method.name);
        let more = own
            .chain(native::RESERVED.iter().map(|method| method.name))
            .filter(|method| !self.methods.contains(&Some((name, *method))))
            .count();
        if self.methods.iter().flatten().count() + more > SCRIPT_METHODS_MAX {
            return restart("methods", SCRIPT_METHODS_MAX);
        }
        Ok(())
    }

    /// Frees the numbers that no table in use has. The memory of unused tables is lost: some bytes for each
    /// method.
    fn forget_unused(&mut self) {
        self.tables.retain(TypeRecord::is_used);
        let tables = &self.tables;
        for name in &mut self.names {
            *name = name.filter(|name| tables.iter().any(|table| table.object_type.name == *name));
        }
        for method in &mut self.methods {
            *method = method.filter(|(of, own)| tables.iter().any(|table| table.has(of, own)));
        }
    }

    fn table(&mut self, object_type: &'static ObjectType) -> Option<&mut TypeRecord> {
        self.tables.iter_mut().find(|table| ptr::eq(table.object_type, object_type))
    }

    /// Gives a method a number, if it has none; returns its name.
    fn name(&mut self, type_name: &'static str, method: &str) -> &'static str {
        let mut known = self.methods.iter().flatten();
        if let Some((_, own)) = known.find(|(of, own)| (*of, *own) == (type_name, method)) {
            return own;
        }
        let name: &'static str = method.to_owned().leak();
        put(&mut self.methods, (type_name, name));
        name
    }

    fn method(&mut self, type_name: &'static str, method: &MethodDefinition) -> Method {
        let name = self.name(type_name, &method.name);
        Method {
            name,
            arguments: method.arguments,
            usage: method.usage.clone().leak(),
            replies: "",
            absent: if method.runs_absent { OnAbsent::Runs } else { OnAbsent::Miss },
            reads: ReadSet::Own,
            run: None,
        }
    }
}

/// Puts a value into the first free place, and returns that place.
fn put<T>(list: &mut Vec<Option<T>>, value: T) -> usize {
    let place = list.iter().position(Option::is_none).unwrap_or(list.len());
    if place == list.len() {
        list.push(None);
    }
    list[place] = Some(value);
    place
}

fn is_same(table: &[Method], methods: &[MethodDefinition]) -> bool {
    let same = |(one, other): (&Method, &MethodDefinition)| {
        one.name == other.name
            && one.arguments == other.arguments
            && one.usage == other.usage
            && (one.absent == OnAbsent::Runs) == other.runs_absent
    };
    table.len() == methods.len() && table.iter().zip(methods).all(same)
}

/// The number of a method of users' own types, from 0; None: it was never defined.
pub(crate) fn number(type_name: &str, method: &str) -> Option<usize> {
    definitions().methods.iter().position(|own| *own == Some((type_name, method)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(name: &str) -> MethodDefinition {
        MethodDefinition {
            name: name.to_owned(),
            arguments: (0, 1),
            usage: "[n]".to_owned(),
            runs_absent: name == "new",
        }
    }

    fn methods(names: impl IntoIterator<Item = &'static str>) -> Vec<MethodDefinition> {
        names.into_iter().map(method).collect()
    }

    fn empty() -> Definitions {
        Definitions { names: Vec::new(), methods: Vec::new(), tables: Vec::new() }
    }

    fn counts(known: &Definitions) -> [usize; 3] {
        [known.names.iter().flatten().count(), known.methods.iter().flatten().count(), known.tables.len()]
    }

    #[test]
    fn a_type_that_is_loaded_anew_keeps_its_numbers() {
        let mut known = empty();
        let first = known.define("a", &methods(["new", "add"])).unwrap();
        let other = known.define("b", &methods(["add"])).unwrap();
        assert_eq!([first.id, other.id], [FIRST_ID, FIRST_ID + 1]);
        let again = known.define("a", &methods(["new", "add"])).unwrap();
        assert!(ptr::eq(first, again), "the same table takes no memory");
        let numbers = known.methods.clone();
        let changed = known.define("a", &methods(["add", "less", "new"])).unwrap();
        assert_eq!(changed.id, first.id);
        assert_eq!(known.methods[..numbers.len()], numbers, "numbers stay");
        assert_eq!(known.methods[numbers.len()..], [Some(("a", "less"))]);
        let names: Vec<&str> = changed.methods.iter().map(|method| method.name).collect();
        assert_eq!(names, ["add", "less", "new"]);
        assert!(matches!(changed.methods[2].absent, OnAbsent::Runs), "new makes");
        assert!(matches!(changed.methods[0].absent, OnAbsent::Miss));
    }

    #[test]
    fn any_difference_is_another_table() {
        let mut known = empty();
        let plain = known.define("a", &[method("m")]).unwrap();
        let others = [
            MethodDefinition { arguments: (1, 1), ..method("m") },
            MethodDefinition { arguments: (0, 2), ..method("m") },
            MethodDefinition { usage: "[x]".to_owned(), ..method("m") },
            MethodDefinition { runs_absent: true, ..method("m") },
        ];
        for other in others {
            let table = known.define("a", std::slice::from_ref(&other)).unwrap();
            assert!(!ptr::eq(table, plain));
            assert!(is_same(table.methods, &[other]));
        }
        assert_eq!(counts(&known), [1, 1 + native::RESERVED.len(), 5]);
    }

    #[test]
    fn a_hundred_names_of_types() {
        let mut known = empty();
        for place in 0..TYPES_MAX {
            let own = known.define(&format!("t{place}"), &[]).unwrap();
            assert_eq!(usize::from(own.id), usize::from(FIRST_ID) + place);
        }
        let before = counts(&known);
        let error = known.define("more", &[]).unwrap_err();
        assert!(error.contains("has had 100 names of types"), "{error}");
        assert_eq!(counts(&known), before, "a refused type leaves nothing");
        assert!(known.define("t0", &[method("m")]).is_ok(), "a name that is known");
    }

    #[test]
    fn a_thousand_names_of_methods() {
        let mut known = empty();
        let reserved = native::RESERVED.len();
        let names: Vec<MethodDefinition> =
            (0..SCRIPT_METHODS_MAX - reserved).map(|place| method(&format!("m{place}"))).collect();
        known.define("a", &names).unwrap();
        assert_eq!(known.methods.len(), SCRIPT_METHODS_MAX);
        let before = counts(&known);
        for (name, own) in [("a", "more"), ("b", "m0")] {
            let error = known.define(name, &[method(own)]).unwrap_err();
            assert!(error.contains("has had 1024 methods of types"), "{error}");
        }
        assert_eq!(counts(&known), before);
        assert!(known.define("a", &[method("m7")]).is_ok(), "a name that is known");
    }

    #[test]
    fn what_is_not_in_use_is_forgotten() {
        let mut known = empty();
        let stays = known.define("stays", &methods(["new", "m"])).unwrap();
        let used = known.define("used", &methods(["new"])).unwrap();
        known.table(stays).unwrap().stays = true;
        known.table(stays).unwrap().users = 0;
        // Three times as many as there are places, each refused when the next one comes.
        for place in 0..3 * SCRIPT_METHODS_MAX {
            let refused = known.define(&format!("t{place}"), &methods(["new", "m", "n"])).unwrap();
            assert!(refused.id < FIRST_ID + TYPES_MAX as u16 && ![stays.id, used.id].contains(&refused.id));
            known.table(refused).unwrap().users -= 1;
            let version = known.define("stays", &[method(&format!("m{place}"))]).unwrap();
            assert_eq!(version.id, stays.id, "a name that was in force keeps its number");
            known.table(version).unwrap().users -= 1;
        }
        assert!(known.names.len() <= TYPES_MAX && known.methods.len() <= SCRIPT_METHODS_MAX);
        let before = [known.methods[0], known.methods[1]];
        assert_eq!(before, [Some(("stays", "new")), Some(("stays", "m"))], "numbers of methods stay");
        assert!(ptr::eq(known.define("stays", &methods(["new", "m"])).unwrap(), stays));
        assert!(ptr::eq(known.define("used", &methods(["new"])).unwrap(), used));
        let names: Vec<_> = known.names.iter().flatten().collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn a_refused_type_that_comes_again_takes_no_memory() {
        let mut known = empty();
        let first = known.define("a", &methods(["new"])).unwrap();
        known.table(first).unwrap().users -= 1;
        let again = known.define("a", &methods(["new"])).unwrap();
        assert!(ptr::eq(first, again));
        assert_eq!(known.table(first).unwrap().users, 1);
    }

    #[test]
    fn four_thousand_tables() {
        let mut known = empty();
        let numbered = |most| MethodDefinition { arguments: (0, most), ..method("m") };
        for most in 0..TABLES_MAX {
            known.define("a", &[numbered(most)]).unwrap();
        }
        let error = known.define("a", &[numbered(TABLES_MAX)]).unwrap_err();
        assert!(error.contains("has had 4096 versions of types"), "{error}");
        assert!(known.define("a", &[numbered(7)]).is_ok(), "a table that is known");
    }
}
