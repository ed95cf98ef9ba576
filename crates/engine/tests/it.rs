//! The engine's tests as one program, which is compiled and linked once: scenes on a clock of their own,
//! single requests, and the simulation (`sim`). The scheduler's orders (`shuttle`) are a program of their
//! own, since the engine is compiled with other locks for it.

mod account;
mod announced_tags;
mod bumps;
mod cascades;
mod deadlines;
#[path = "../../../fuzz/draw.rs"]
#[allow(dead_code, reason = "shared with fuzz targets")]
mod draw;
mod ends;
mod engine;
mod fences;
mod floors;
mod grace;
mod herd;
mod left_out;
mod loads;
mod long_gets;
mod named_tags;
mod names;
mod objects;
mod objects_long;
mod objects_sim;
mod objects_types;
mod observed;
mod old_values;
mod orders;
mod partial;
mod prefixes;
mod rights;
mod rules;
mod runs;
mod script_host;
mod scripts;
mod scripts_after;
mod scripts_state;
mod sim;
mod slots;
mod statistics;
mod tags;
mod tokens;
mod unleased;
mod world;

/// A file that no list names would be compiled by no test.
#[test]
fn every_file_is_a_module_or_a_program() {
    let names = include_str!("it.rs").lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let names: Vec<_> = names.chain(["it", "shuttle"]).collect();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            assert!(names.contains(&path.file_stem().unwrap().to_str().unwrap()), "{}", path.display());
        }
    }
}
