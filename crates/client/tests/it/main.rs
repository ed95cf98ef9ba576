//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.

mod alike;
mod blocking;
mod chaos;
mod commands;
mod computing;
mod connections;
mod disturbed;
mod ejection;
mod examples;
mod failures;
mod fake;
mod guarantees;
mod handing_on;
mod herd_servers;
mod interleavings;
mod joins;
/// Names that the crate's modules in `interleavings` import.
mod item {
    pub(crate) use cattlegrid_client::{Expiration, Written};
}
mod namespace_model;
mod namespaces;
mod near;
mod nodes;
mod objects;
mod processes;
mod replies;
mod route;
mod secured;
mod servers;
mod spans;
mod types;
mod unreadable;
