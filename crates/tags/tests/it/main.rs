//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.

#[cfg(not(loom))]
mod faults;
#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod model;
