//! The unsafe fence: fork, exec, inherited descriptors and the progress page.
//!
//! Everything outside this module is safe Rust; everything in here exposes safe types. What is safe only as
//! this crate uses it (taking over a descriptor by its number, forking) is not public.
//!
//! # What is allowed between fork and the child's first instruction
//!
//! There are two forks, with different rules.
//!
//! 1. [`Spawn::spawn`] starts a child of a *multi-threaded* parent, which then calls `exec`. The child runs
//!    in the parent's memory (`CLONE_VM`) on a stack of its own, while the calling thread waits
//!    (`CLONE_VFORK`): nothing is copied, so a parent of many gigabytes starts it as fast as a small one.
//!    Other threads of the parent go on, and may hold the allocator's lock, or any other. So until `execve`
//!    the child makes raw system calls only, on memory prepared before: no allocation, no locks, no
//!    `std::env`, no formatting, no panics. All signals are blocked until it has reset their handlers. Errors
//!    travel back as five bytes on a pipe.
//! 2. `SingleThreaded::fork` forks a *template*, which goes on running Rust or Python in the child. That is
//!    sound only when no other thread existed at the fork, for the reason above. Holding a `SingleThreaded`
//!    is the proof: it counts the threads of the process and the type cannot leave its thread. A template
//!    that has started threads while loading is refused with a clear message.

#![expect(unsafe_code, reason = "fork, exec, prctl and shared memory have no safe interface")]

mod env;
mod fds;
mod fork;
mod page;
mod signals;
mod spawn;

pub(crate) use env::scrub_env;
pub use fds::open_fds;
pub(crate) use fds::{claim_fd, claim_socket, close_all_except, redirect};
pub(crate) use fork::thread_count;
pub use fork::{Exit, reap};
pub(crate) use fork::{ForkSide, SingleThreaded};
pub use page::Page;
pub(crate) use signals::TermSignal;
pub use signals::block_signals;
pub use spawn::{Child, Spawn, SpawnError, SpawnStep};
