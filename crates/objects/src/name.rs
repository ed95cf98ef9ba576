//! Keys that name objects and calls.

use std::borrow::Cow;

use crate::method::MethodId;

/// A key that names an object or a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VirtualKey<'k> {
    /// `type:method:key[:arg...]`.
    Call(CallName<'k>),
    /// `type::key`: the object itself.
    Object {
        /// The number in the object's item: that of its type, combined with that of its prefix.
        type_id: u16,
        /// The object's key without escapes; never empty.
        key: Cow<'k, [u8]>,
    },
}

/// A call by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallName<'k> {
    /// The number in the object's item: that of its type, combined with that of its prefix.
    pub type_id: u16,
    /// The method.
    pub method: MethodId,
    /// The part after `type:method:`, with its escapes; None: the name ends after the method.
    pub rest: Option<&'k [u8]>,
}

/// The position of a call's parts in a key, for the registry that has read it: see [`crate::Registry::spot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    pub(crate) registry: u32,
    pub(crate) type_id: u16,
    pub(crate) method: MethodId,
    /// The offset of the rest; 0: there is none.
    pub(crate) rest: u16,
}
