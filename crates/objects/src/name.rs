//! Names of objects and calls, as keys.

use std::borrow::Cow;

use crate::method::MethodId;

/// A key that names an object or a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named<'k> {
    /// `type:method:key[:arg...]`.
    Call(Name<'k>),
    /// `type::key`: the object itself.
    Object {
        /// The number in the object's item: that of its type, and behind which prefix it is.
        type_id: u16,
        /// The object's key with its escapes undone, as it is in a call; never empty.
        key: Cow<'k, [u8]>,
    },
}

/// A call by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'k> {
    /// The number in the object's item: that of its type, and behind which prefix it is.
    pub type_id: u16,
    /// The method.
    pub method: MethodId,
    /// What follows `type:method:`, still escaped; None: the name ends after the method.
    pub rest: Option<&'k [u8]>,
}

/// Where a key names a call, for the registry that has read it: see [`crate::Registry::spot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    pub(crate) registry: u32,
    pub(crate) type_id: u16,
    pub(crate) method: MethodId,
    /// Where the rest begins; 0: there is none.
    pub(crate) rest: u16,
}
