//! The tests of this crate as one program, which is compiled and linked once; its modules are the files
//! beside this one.
#![allow(
    clippy::missing_panics_doc,
    clippy::needless_for_each,
    clippy::semicolon_if_nothing_returned,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests read better so"
)]

mod basics;
mod batches;
mod budget;
mod chaos;
mod claims;
mod common;
mod descriptors;
#[path = "../../../../fuzz/draw.rs"]
#[allow(dead_code, reason = "shared with fuzz targets")]
mod draw;
mod estimate;
mod failures;
mod guardian;
mod host;
mod json_lines;
#[path = "../../src/jsonl.rs"]
#[allow(dead_code, unreachable_pub, reason = "the pool's own module; of it only base64 is public")]
mod jsonl;
mod languages;
mod lines;
mod long_frames;
#[path = "../../src/long_line.rs"]
#[allow(dead_code, reason = "the pool's own module, which is not public")]
mod long_line;
mod objects;
mod printed;
mod python_batches;
mod queue;
mod recycling;
mod reply_room;
mod resources;
mod retries;
mod submission;
