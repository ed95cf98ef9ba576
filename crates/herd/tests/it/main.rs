//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.

mod deadlines;
#[path = "../../../../fuzz/draw.rs"]
#[allow(dead_code, reason = "shared with fuzz targets")]
mod draw;
mod late;
mod model;
mod random;
