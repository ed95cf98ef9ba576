//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.

mod kept;
mod model;
mod objects;
mod one;
mod policy;
mod prop;
mod shares;
mod tree;
