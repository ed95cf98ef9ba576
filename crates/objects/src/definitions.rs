//! Types that are defined while the process runs: their names, numbers and tables of methods, which stay until it ends.
//!
//! The number of a type is part of its objects' keys, and the number of a method is the place of its counters: both go with
//! the name, so that a type that is loaded anew finds its objects and goes on counting. A table that was defined before is
//! found again; only another one takes memory.

use std::sync::{Mutex, PoisonError};

use crate::method::{Absent, Method, ObjectType, Reads};
use crate::native;

/// The first number of a type of users' own.
pub(crate) const FIRST_ID: u16 = 64;
/// Most names of types of users' own, in the life of a process.
pub const TYPES_MAX: usize = 100;
/// Most names of methods of such types, in the life of a process.
pub const SCRIPT_METHODS_MAX: usize = 1024;
/// Most methods of a type.
pub const TYPE_METHODS_MAX: usize = 56;
/// Most tables of types, in the life of a process.
const TABLES_MAX: usize = 4096;

/// A method of a type of users' own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodDefinition {
    /// Letters and digits, lower case, or `_`.
    pub name: String,
    /// Fewest and most arguments after the object's key.
    pub arguments: (usize, usize),
    /// The arguments as a table shows them: `limit window [n]`.
    pub usage: String,
    /// It runs although there is no object: `new` does.
    pub runs_absent: bool,
}

#[derive(Debug, Default)]
struct Definitions {
    /// By their numbers from [`FIRST_ID`] on.
    names: Vec<&'static str>,
    /// Name of the type, name of the method; the place is its number.
    methods: Vec<(&'static str, &'static str)>,
    tables: Vec<&'static ObjectType>,
}

static DEFINITIONS: Mutex<Definitions> =
    Mutex::new(Definitions { names: Vec::new(), methods: Vec::new(), tables: Vec::new() });

/// The type with these methods, in this order. `name` and the methods' names are lower case.
///
/// # Errors
/// The process has seen too many.
pub fn define(name: &str, methods: &[MethodDefinition]) -> Result<&'static ObjectType, String> {
    DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner).define(name, methods)
}

impl Definitions {
    fn define(&mut self, name: &str, methods: &[MethodDefinition]) -> Result<&'static ObjectType, String> {
        let same = |one: &&&'static ObjectType| one.name == name && is_same(one.methods, methods);
        if let Some(found) = self.tables.iter().find(same) {
            return Ok(found);
        }
        let restart = |what: &str, most: usize| {
            Err(format!(
                "the server has had {most} {what} of types of your own; start it anew to define others"
            ))
        };
        if self.tables.len() == TABLES_MAX {
            return restart("versions", TABLES_MAX);
        }
        let place = self.names.iter().position(|own| *own == name);
        if place.is_none() && self.names.len() == TYPES_MAX {
            return restart("names", TYPES_MAX);
        }
        let own = methods.iter().map(|method| &*method.name);
        let names = own.chain(native::RESERVED.iter().map(|method| method.name));
        let more = names.filter(|method| !self.methods.contains(&(name, *method))).count();
        if self.methods.len() + more > SCRIPT_METHODS_MAX {
            return restart("methods", SCRIPT_METHODS_MAX);
        }
        let place = place.unwrap_or_else(|| {
            self.names.push(String::from(name).leak());
            self.names.len() - 1
        });
        let name = self.names[place];
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
        self.tables.push(object_type);
        Ok(object_type)
    }

    /// Gives a method its number, if it has none.
    fn name(&mut self, type_name: &'static str, method: &str) -> &'static str {
        if let Some((_, own)) = self.methods.iter().find(|(of, own)| (*of, *own) == (type_name, method)) {
            return own;
        }
        let name: &'static str = method.to_owned().leak();
        self.methods.push((type_name, name));
        name
    }

    fn method(&mut self, type_name: &'static str, method: &MethodDefinition) -> Method {
        let name = self.name(type_name, &method.name);
        Method {
            name,
            arguments: method.arguments,
            usage: method.usage.clone().leak(),
            replies: "",
            absent: if method.runs_absent { Absent::Runs } else { Absent::Miss },
            reads: Reads::Own,
            run: None,
        }
    }
}

fn is_same(table: &[Method], methods: &[MethodDefinition]) -> bool {
    let same = |(one, other): (&Method, &MethodDefinition)| {
        one.name == other.name
            && one.arguments == other.arguments
            && one.usage == other.usage
            && (one.absent == Absent::Runs) == other.runs_absent
    };
    table.len() == methods.len() && table.iter().zip(methods).all(same)
}

/// The number of a method of a type of users' own, from 0; None: it was never defined.
pub(crate) fn number(type_name: &str, method: &str) -> Option<usize> {
    let known = DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner);
    known.methods.iter().position(|own| *own == (type_name, method))
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
        [known.names.len(), known.methods.len(), known.tables.len()]
    }

    #[test]
    fn a_type_that_is_loaded_anew_keeps_its_numbers() {
        let mut known = empty();
        let first = known.define("a", &methods(["new", "add"])).unwrap();
        let other = known.define("b", &methods(["add"])).unwrap();
        assert_eq!([first.id, other.id], [FIRST_ID, FIRST_ID + 1]);
        let again = known.define("a", &methods(["new", "add"])).unwrap();
        assert!(std::ptr::eq(first, again), "the same table takes no memory");
        let numbers = known.methods.clone();
        let changed = known.define("a", &methods(["add", "less", "new"])).unwrap();
        assert_eq!(changed.id, first.id);
        assert_eq!(known.methods[..numbers.len()], numbers, "numbers stay");
        assert_eq!(known.methods[numbers.len()..], [("a", "less")]);
        let names: Vec<&str> = changed.methods.iter().map(|method| method.name).collect();
        assert_eq!(names, ["add", "less", "new"]);
        assert!(matches!(changed.methods[2].absent, Absent::Runs), "new makes");
        assert!(matches!(changed.methods[0].absent, Absent::Miss));
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
            assert!(!std::ptr::eq(table, plain));
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
