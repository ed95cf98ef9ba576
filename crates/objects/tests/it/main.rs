//! The tests of this crate as one program, which is compiled and linked once; its modules are the files beside this one.

mod any_bytes;
mod bloom;
mod board;
mod caller;
mod collections;
mod consistent;
mod counter;
mod fake_host;
mod hll;
mod hosts;
mod listing;
mod many_types;
mod map;
mod names;
mod no_room;
mod numbers;
mod owners;
mod queue;
mod quota;
mod rates;
mod recent;
mod room;
mod set;
mod swcounter;
mod topk;
mod world;
