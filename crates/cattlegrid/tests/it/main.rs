//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.

mod bench;
mod demo;
mod fields;
mod held;
mod loaders;
mod objects;
mod options;
mod own_types;
mod scripts;
mod trial;
