//! Every row of the failure table, with real processes and real signals. A file for each kind of failure.
#![allow(
    clippy::needless_for_each,
    clippy::unwrap_used,
    clippy::similar_names,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    clippy::wildcard_imports,
    reason = "tests read better so"
)]

mod crash_loop;
mod hung;
mod lost;
mod protocol;
mod start;
mod streams;
