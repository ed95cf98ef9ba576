//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.

#[cfg(not(loom))]
#[path = "../../../../fuzz/draw.rs"]
#[allow(dead_code, reason = "shared with fuzz targets")]
mod draw;
#[cfg(not(loom))]
mod loader_wire;
#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod stream;
#[cfg(not(loom))]
mod streams;
#[cfg(not(loom))]
mod vectors;
