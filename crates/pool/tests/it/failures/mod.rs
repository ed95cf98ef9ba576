//! Every row of the failure table, with real processes and real signals. A file for each kind of failure.

mod crash_loop;
mod hung;
mod lost;
mod protocol;
mod start;
mod streams;
