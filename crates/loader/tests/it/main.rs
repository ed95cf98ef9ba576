//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.

mod common;
mod generations;
mod loaders;
