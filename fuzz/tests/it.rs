//! Each target reads random input for some seconds, from the same seed in each run.
//!
//! `FUZZ_SECONDS` (10) says how long. Inputs that reached new code are kept in `fuzz/corpus/TARGET`, those that failed in
//! `fuzz/artifacts/TARGET`; `cargo xtask fuzz TARGET FILE` runs one again.

use std::fs;
use std::process::Command;

fn fuzz(target: &str, program: &str, options: &[&str]) {
    let seconds = std::env::var("FUZZ_SECONDS").unwrap_or_else(|_| "10".to_owned());
    let [corpus, artifacts] =
        ["corpus", "artifacts"].map(|name| format!("{}/{name}/{target}/", env!("CARGO_MANIFEST_DIR")));
    for directory in [&corpus, &artifacts] {
        fs::create_dir_all(directory).unwrap();
    }
    let mut fuzzer = Command::new(program);
    fuzzer.args(["-seed=1", "-verbosity=0", "-print_funcs=0", "-malloc_limit_mb=256"]);
    fuzzer.arg(format!("-max_total_time={seconds}")).arg(format!("-artifact_prefix={artifacts}"));
    // The compiler puts constants that are equal into several objects.
    fuzzer.env("ASAN_OPTIONS", "detect_odr_violation=0");
    let status = fuzzer.args(options).arg(corpus).status().unwrap();
    assert!(status.success(), "{target}: {status}");
}

macro_rules! targets {
    ($($name:ident: $options:expr;)*) => {
        $(
            #[test]
            fn $name() {
                fuzz(stringify!($name), env!(concat!("CARGO_BIN_EXE_", stringify!($name))), &$options);
            }
        )*

        const TARGETS: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    text: ["-dict=protocol.dict"];
    meta: ["-dict=protocol.dict"];
    packets: [];
    response: [];
    frames: [];
    jsonl: [];
    store: [];
    tree: [];
    connection: ["-max_len=8192"];
    herd: ["-len_control=0", "-max_len=2000"];
    rules: ["-len_control=0", "-max_len=2000"];
    object_names: ["-len_control=0", "-max_len=4000"];
    script_state: ["-max_len=2000"];
}

#[test]
fn every_target_is_run() {
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz_targets")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(TARGETS.contains(&name), "{name} is run by no test");
    }
}
