//! A call: what a method is given besides the object and its arguments, and what it answers.

use crate::calendar::Zone;
use crate::listing::Listing;
use crate::number::push_whole;
use crate::object::Change;
use crate::settings::{Settings, TypeSettings};

/// What a method is given besides the object and its arguments.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The time of the call: milliseconds of the Unix time.
    pub now_ms: u64,
    /// Another number for each call.
    pub random: u64,
    /// What the rule file says.
    pub settings: &'a Settings,
    /// What it says about the type.
    pub own: &'a TypeSettings,
    /// The zone in which days, weeks and months begin.
    pub zone: &'a Zone,
    /// Takes the value of a reply.
    pub out: &'a mut Vec<u8>,
}

impl Frame<'_> {
    /// The reply of a `new` that has made the object.
    pub(crate) fn created(&mut self) -> Reply {
        self.text(b"CREATED")
    }

    /// The reply of a `new` whose arguments no object can have: a miss, or what Cacheismo answers.
    pub(crate) fn refused(&mut self) -> Reply {
        if self.settings.compat { self.text(b"NOT_CREATED") } else { Reply::Miss }
    }

    /// A reply of these bytes.
    pub(crate) fn text(&mut self, text: &[u8]) -> Reply {
        self.out.extend_from_slice(text);
        Reply::Value
    }

    /// A reply of this number.
    pub(crate) fn number(&mut self, number: u64) -> Reply {
        push_whole(self.out, number);
        Reply::Value
    }

    /// When an object of the type that is made now expires: Unix time in milliseconds, None: never.
    pub(crate) fn end_of_new(&self) -> Option<u64> {
        (self.own.ttl_s > 0).then(|| self.now_ms.saturating_add(u64::from(self.own.ttl_s) * 1000))
    }
}

/// What Cacheismo answers for an object that is not there.
pub(crate) const CACHE_MISS: &[u8] = b"ERROR_CACHE_MISS";

/// What a method answers.
#[derive(Debug)]
pub enum Reply {
    /// The bytes that it wrote to [`Frame::out`].
    Value,
    /// As [`Reply::Value`], in JSON.
    Json,
    /// A miss.
    Miss,
    /// Members of this object, perhaps of others too, in pieces.
    List(Listing),
}

/// Why a call failed. The object is as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The client's fault: `CLIENT_ERROR type.method: TEXT`.
    Client(String),
    /// `SERVER_ERROR TEXT`.
    Server(String),
    /// This many bytes of the budget are missing: free them, and call again.
    NoRoom(usize),
}

impl CallError {
    /// `arg N must be WHAT`, counted from 1 as users do; `place` counts from 0.
    pub fn argument(place: usize, what: &str) -> Self {
        Self::Client(format!("arg {} must be {what}", place + 1))
    }
}

/// A call that was executed.
#[derive(Debug)]
pub struct Done {
    /// What it answers.
    pub outcome: Outcome,
    /// What becomes of the state.
    pub change: Change,
    /// Unix time in milliseconds at which the object expires from now on, rounded up to a second by the store;
    /// `Some(None)`: never; `None`: as before, and for a new object as its type says.
    pub expires_ms: Option<Option<u64>>,
}

/// What a call answers.
#[derive(Debug)]
pub enum Outcome {
    /// The bytes written to `out`, with these client flags.
    Value {
        /// Client flags.
        flags: u32,
    },
    /// A miss.
    Miss,
    /// What it lists.
    List {
        /// Read it to its end.
        listing: Box<Listing>,
        /// Client flags.
        flags: u32,
    },
    /// A whole line without its end: the call failed.
    Error(String),
    /// The call was not executed: this many bytes of the budget are missing.
    NoRoom(usize),
}
