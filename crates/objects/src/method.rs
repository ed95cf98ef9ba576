//! Types and their methods, as tables.

use crate::arguments::Arguments;
use crate::call::{CallError, Frame, Reply};
use crate::object::{Object, View};

/// A type of objects.
#[derive(Debug)]
pub struct ObjectType {
    /// Letters and digits, lower case.
    pub name: &'static str,
    /// Its number in the keys of its objects: never changed, never reused.
    pub id: u16,
    /// What it is, in a sentence.
    pub doc: &'static str,
    /// Its own methods; [`crate::Registry`] adds those that every object has.
    pub methods: &'static [Method],
    /// Writes the state as JSON, as `dump` shows it. None: it is a collection, which is shown by a [`crate::Listing`].
    pub dump: Option<fn(View<'_>, &Frame<'_>, &mut Vec<u8>)>,
}

/// A method.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// Letters and digits, lower case.
    pub name: &'static str,
    /// Fewest and most arguments after the object's key.
    pub arguments: (usize, usize),
    /// The arguments as the documentation shows them: `limit window`, `[n]`.
    pub usage: &'static str,
    /// The replies as the documentation shows them: `QUOTA_OK`, `QUOTA_EXCEEDED`.
    pub replies: &'static str,
    /// What it does on an object that is not there.
    pub absent: Absent,
    /// Which objects it reads.
    pub reads: Reads,
    /// Executes it; None: a [`crate::Host`] does.
    pub run: Option<Run>,
}

/// Executes a method.
pub type Run = fn(&mut Object<'_>, &Arguments<'_>, &mut Frame<'_>) -> Result<Reply, CallError>;

/// A row of a type's table: a method that reads its own object.
pub(crate) const fn method(
    name: &'static str,
    arguments: (usize, usize),
    usage: &'static str,
    replies: &'static str,
    absent: Absent,
    run: Run,
) -> Method {
    Method { name, arguments, usage, replies, absent, reads: Reads::Own, run: Some(run) }
}

/// The same method, if its arguments are keys of objects, which it reads.
pub(crate) const fn of_several(method: &Method) -> Method {
    Method { reads: Reads::Arguments, ..*method }
}

impl Method {
    /// How it is called, as users read it: `quota:addandcheck:KEY[:n]`.
    pub fn form(&self, type_name: &str) -> String {
        let mut form = [type_name, self.name].join(":");
        if self.name != "methods" {
            form.push_str(":KEY");
        }
        for part in self.usage.split_whitespace() {
            form.push(':');
            form.push_str(part);
        }
        // An argument that may be left out is left out with its colon.
        form.replace(":[", "[:")
    }
}

/// What a method does on an object that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// The call is a miss, unless the type has arguments for an implicit `new`.
    Miss,
    /// It makes the object, or answers without one.
    Runs,
}

/// The objects that a method reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Its own.
    Own,
    /// Its own, and those that its arguments name, of the same type.
    Arguments,
}

/// A method of a type: places in the registry's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MethodId {
    pub(crate) object_type: u16,
    pub(crate) method: u16,
}
