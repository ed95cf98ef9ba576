//! Objects: values with methods, which a client calls by the name of a key.
//!
//! ```text
//!   quota:addandcheck:userKey:10        type : method : object's key : argument
//!   quota::userKey                      the object itself
//! ```
//! The [`Registry`] knows the types that are switched on and reads names ([`Registry::named`]). A call is executed by
//! [`Registry::call`] on the state that the caller has found ([`ObjectState`]); what becomes of it is in [`Done`]. Nothing here
//! looks up or stores an item, takes a lock or reads a clock.
//!
//! A state is a few bytes ([`Object::bytes`]), or a collection of members in order ([`Object::members`]): as bytes too
//! while it is small, then in a tree outside the log. Methods that show many members return a [`Listing`], which is read
//! in pieces.
//!
//! # Invariants
//! * A call that fails leaves the state as it was: bytes are changed in a copy, and a tree only after room for the whole
//!   call was reserved.

mod arguments;
mod calendar;
mod call;
mod definitions;
mod fields;
mod listing;
mod members;
mod method;
mod name;
mod name_table;
pub mod native;
mod number;
mod object;
mod registry;
mod script;
mod settings;

pub use arguments::{ARGUMENTS_MAX, Arguments, unescape, unescape_flag};
pub use calendar::Zone;
pub use call::{CallError, Done, Frame, Outcome, Reply};
pub use definitions::{
    MethodDefinition, SCRIPT_METHODS_MAX, TYPE_METHODS_MAX, TYPES_MAX, TypeHandle, define,
};
pub use fields::{
    FIELD_KEY_MAX, FIELDS_MAX, FieldCall, FieldKind, Layer, Order, PENDING_BYTES_MAX, PENDING_MAX, Pending,
    Rows, copy_plain, dump_field, random_places,
};
pub use listing::json::string as push_json_string;
pub use listing::{Listing, TooLarge};
pub use members::{FLAT_MAX, Members};
pub use method::{Absent, Method, MethodId, ObjectType, Reads, Run};
pub use name::{Name, Named, Spot};
pub use number::{float as read_float, push_float, whole_float as read_whole};
pub use object::{Change, FieldBase, Object, ObjectState, View};
pub use registry::stray::Stray;
pub use registry::{OBJECT_KEY_MAX, Registry, Script, TYPE_BITS, prefix_of, type_of};
pub use script::{
    After, Host, HostType, HostUsage, Moved, NewState, NoWorld, ScriptCall, ScriptDone, ScriptMethod,
    ScriptMethodId, ScriptOutcome, World,
};
pub use settings::{Eviction, Settings, TypeSettings};
