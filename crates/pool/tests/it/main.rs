//! The tests of this crate as one program, which is compiled and linked once; its modules are the files beside this one.

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
mod sizing;
mod submission;
