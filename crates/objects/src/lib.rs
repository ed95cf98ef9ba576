//! Objects: values with methods, which clients call by the name of a key.
//!
//! ```text
//!   quota:addandcheck:userKey:10        type : method : object's key : argument
//!   quota::userKey                      the object itself
//! ```
//! The [`Registry`] knows the types that are switched on, and reads names ([`Registry::named`]).
//! [`Registry::call`] executes a call on the state that the caller has found ([`ObjectState`]), and returns a
//! [`CallResult`]. This crate does not look up or store items, take locks or read a clock.
//!
//! A state is a few bytes ([`Object::bytes`]), or a collection of members in order ([`Object::members`]). A
//! small collection is bytes too; a larger one is in a tree outside the log. Methods that show many members
//! return a [`Listing`], which is read in pieces.
//!
//! # Invariants
//! * A call that fails leaves the state unchanged: bytes are changed in a copy, and a tree only after room
//!   for the whole call was reserved.

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
pub use call::{CallContext, CallError, CallResult, MethodReply, ObjectOutcome};
pub use definitions::{
    MethodDefinition, SCRIPT_METHODS_MAX, TYPE_METHODS_MAX, TYPES_MAX, TypeHandle, define,
};
pub use fields::{
    FIELD_KEY_MAX, FIELDS_MAX, FieldCall, FieldKind, FieldRows, Layer, PENDING_BYTES_MAX, PENDING_MAX,
    PendingChanges, RowOrder, copy_plain, dump_field, random_places,
};
pub use listing::json::string as push_json_string;
pub use listing::{Listing, TooLarge};
pub use members::{FLAT_MAX, Members};
pub use method::{Method, MethodFn, MethodId, ObjectType, OnAbsent, ReadSet};
pub use name::{CallName, Spot, VirtualKey};
pub use number::{float as read_float, push_float, whole_float as read_whole};
pub use object::{FieldBase, Object, ObjectState, StateChange, StateView};
pub use registry::stray::Stray;
pub use registry::{HostedMethod, OBJECT_KEY_MAX, Registry, TYPE_BITS, prefix_of, type_of};
pub use script::{
    FollowUp, Host, HostType, HostUsage, NewState, NoWorld, ObjectMoved, ScriptCall, ScriptMethod,
    ScriptMethodId, ScriptOutcome, ScriptResult, ScriptWorld,
};
pub use settings::{Eviction, Settings, TypeSettings};
