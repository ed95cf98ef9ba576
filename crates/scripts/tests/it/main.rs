//! The tests of this crate as one program, which is compiled and linked once; its modules are the files beside this one.

mod agree;
mod errors;
mod harness;
mod keys;
mod library;
mod lint;
mod natives;
mod runaways;
mod sandbox;
mod source;
