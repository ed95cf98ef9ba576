//! Types of objects written in Luau, one file for each type: `objects/quota.luau` is the type `quota`.
//!
//! ```text
//!   source  ──▶ lint ──▶ load ──▶ Scripts, ──▶ threads: a VM ──▶ call: state ──▶ method ──▶ state, reply
//!   files       mistakes  types    a Host      for each thread     │
//!                                              sandbox, library    watchdog, breaches: limits
//! ```
//! A VM keeps no state of an object: a call brings the state as bytes, and its result returns it as bytes. So
//! any thread may run any call, and a VM can be dropped after any call.

#![allow(
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers of Luau are f64: whole ones are looked at before they are cast"
)]

mod bounds;
mod breaches;
mod bytecode;
mod call;
mod caught;
mod clock;
mod compiler;
mod current;
mod dump;
mod json;
mod library;
mod limits;
mod lint;
mod load;
mod names;
mod natives;
mod offline;
mod problem;
mod raw;
mod raw_call;
mod reply;
mod scripts;
mod source;
mod state;
#[cfg(any(test, fuzzing))]
mod testing;
mod texts;
mod threads;
mod usage;
mod vm;
mod watchdog;

pub use limits::Limits;
pub use lint::lint;
pub use offline::{Seen, StartServer, TestReply, TestResult, TestServer, escaped, quoted, run_tests};
pub use problem::{Problem, Severity};
pub use scripts::Scripts;
pub use source::{FILE_MAX, FILES_MAX, SourceFile, Sources};
pub use vm::globals;

/// Code of fuzz targets.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    /// The target `script_state`.
    pub fn state(bytes: &[u8]) {
        crate::state::properties::check(bytes);
    }
}
