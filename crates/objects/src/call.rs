//! A call: the context of a method, and its result.

use crate::calendar::Zone;
use crate::listing::Listing;
use crate::number::push_whole;
use crate::object::StateChange;
use crate::settings::{Settings, TypeSettings};

/// The context of a call, besides the object and the arguments.
#[derive(Debug)]
pub struct CallContext<'a> {
    /// The time of the call: Unix time in milliseconds.
    pub now_ms: u64,
    /// A number that differs in each call.
    pub random: u64,
    /// The settings of objects in the rule file.
    pub settings: &'a Settings,
    /// The settings of the type in the rule file.
    pub own: &'a TypeSettings,
    /// The zone in which days, weeks and months begin.
    pub zone: &'a Zone,
    /// The buffer for the value of the reply.
    pub out: &'a mut Vec<u8>,
}

impl CallContext<'_> {
    /// The reply of a `new` that has made the object.
    pub(crate) fn created(&mut self) -> MethodReply {
        self.text(b"CREATED")
    }

    /// The reply of a `new` whose arguments are valid but too large for any object: a miss, or Cacheismo's
    /// text.
    pub(crate) fn refused(&mut self) -> MethodReply {
        if self.settings.compat { self.text(b"NOT_CREATED") } else { MethodReply::Miss }
    }

    /// A reply with these bytes as its value.
    pub(crate) fn text(&mut self, text: &[u8]) -> MethodReply {
        self.out.extend_from_slice(text);
        MethodReply::Value
    }

    /// A reply with this number as its value.
    pub(crate) fn number(&mut self, number: u64) -> MethodReply {
        push_whole(self.out, number);
        MethodReply::Value
    }

    /// When an object that is made now expires by its type's settings: Unix time in milliseconds; None:
    /// never.
    pub(crate) fn end_of_new(&self) -> Option<u64> {
        (self.own.ttl_s > 0).then(|| self.now_ms.saturating_add(u64::from(self.own.ttl_s) * 1000))
    }
}

/// Cacheismo's answer for an absent object.
pub(crate) const CACHE_MISS: &[u8] = b"ERROR_CACHE_MISS";

/// The reply of a method.
#[derive(Debug)]
pub enum MethodReply {
    /// The bytes that the method wrote to [`CallContext::out`].
    Value,
    /// The same as [`MethodReply::Value`], in JSON.
    Json,
    /// A miss.
    Miss,
    /// Members of this object, and perhaps of others, which are read in pieces.
    List(Listing),
}

/// Why a call failed. The object is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// A mistake of the client: `CLIENT_ERROR type.method: TEXT`.
    Client(String),
    /// An error of the server: `SERVER_ERROR TEXT`.
    Server(String),
    /// There is no memory: this many bytes must be freed before the call is repeated.
    NoRoom(usize),
}

impl CallError {
    /// The error `arg N must be WHAT`, where N counts from 1; `place` counts from 0.
    pub fn argument(place: usize, what: &str) -> Self {
        Self::Client(format!("arg {} must be {what}", place + 1))
    }
}

/// The result of a call.
#[derive(Debug)]
pub struct CallResult {
    /// The reply.
    pub outcome: ObjectOutcome,
    /// The change of the object's state.
    pub change: StateChange,
    /// The object's new expiry, in Unix milliseconds, which the store rounds up to a second. `Some(None)`:
    /// never; `None`: unchanged, and for a new object by its type's settings.
    pub expires_ms: Option<Option<u64>>,
}

/// The reply of a call.
#[derive(Debug)]
pub enum ObjectOutcome {
    /// The bytes written to `out`, with these client flags.
    Value {
        /// Client flags.
        flags: u32,
    },
    /// A miss.
    Miss,
    /// A list, which is read in pieces.
    List {
        /// The list, to be read to its end.
        listing: Box<Listing>,
        /// Client flags.
        flags: u32,
    },
    /// The call failed; the error line without its end.
    Error(String),
    /// The call was not executed: there is no memory, and this many bytes are missing.
    NoRoom(usize),
}
