//! The tests of this crate as one program, which is compiled and linked once; its modules are the files beside this one.

mod model;
mod objects;
mod policy;
mod prop;
mod tree;
