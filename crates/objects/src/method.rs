//! Types and their methods, as tables.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::object::{Object, StateView};

/// A type of objects.
#[derive(Debug)]
pub struct ObjectType {
    /// The name: lower-case letters and digits.
    pub name: &'static str,
    /// The number in the keys of its objects, which is never changed or reused.
    pub id: u16,
    /// The description, in a sentence.
    pub doc: &'static str,
    /// The type's own methods; [`crate::Registry`] adds those that every object has.
    pub methods: &'static [Method],
    /// Writes the state as JSON for `dump`. None: the type is a collection, which a [`crate::Listing`] shows.
    pub dump: Option<fn(StateView<'_>, &CallContext<'_>, &mut Vec<u8>)>,
}

/// A method of a type.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// The name: lower-case letters and digits.
    pub name: &'static str,
    /// The fewest and the most arguments after the object's key.
    pub arguments: (usize, usize),
    /// The arguments in the form of the documentation: `limit window`, `[n]`.
    pub usage: &'static str,
    /// The replies in the form of the documentation: `QUOTA_OK`, `QUOTA_EXCEEDED`.
    pub replies: &'static str,
    /// The behaviour on an absent object.
    pub absent: OnAbsent,
    /// The objects that the method reads.
    pub reads: ReadSet,
    /// The function of the method; None: a [`crate::Host`] runs it.
    pub run: Option<MethodFn>,
}

/// The function of a method.
pub type MethodFn =
    fn(&mut Object<'_>, &Arguments<'_>, &mut CallContext<'_>) -> Result<MethodReply, CallError>;

/// A row of a type's table: a method that reads its own object.
pub(crate) const fn method(
    name: &'static str,
    arguments: (usize, usize),
    usage: &'static str,
    replies: &'static str,
    absent: OnAbsent,
    run: MethodFn,
) -> Method {
    Method { name, arguments, usage, replies, absent, reads: ReadSet::Own, run: Some(run) }
}

/// The same method, with arguments that are keys of objects, which it reads.
pub(crate) const fn of_several(method: &Method) -> Method {
    Method { reads: ReadSet::Arguments, ..*method }
}

impl Method {
    /// The form of a call as users read it: `quota:addandcheck:KEY[:n]`.
    pub fn form(&self, type_name: &str) -> String {
        let mut form = [type_name, self.name].join(":");
        if self.name != "methods" {
            form.push_str(":KEY");
        }
        for part in self.usage.split_whitespace() {
            form.push(':');
            form.push_str(part);
        }
        // An optional argument is left out together with its colon.
        form.replace(":[", "[:")
    }
}

/// The behaviour of a method on an absent object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnAbsent {
    /// The call is a miss, unless the type has arguments for an implicit `new`.
    Miss,
    /// The method runs, and makes the object or replies without one.
    Runs,
}

/// The objects that a method reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSet {
    /// The object of the call.
    Own,
    /// The object of the call, and those of the same type that its arguments name.
    Arguments,
}

/// A method of a type, by its positions in the registry's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MethodId {
    pub(crate) object_type: u16,
    pub(crate) method: u16,
}
