//! `cargo xtask fuzz TARGET [OPTION]...`: random input for a target of `fuzz/`, guided by coverage.
//!
//! The compiler's flags are those of cargo-fuzz, without its one unit of code generation per crate: that
//! would take minutes more. Tests under the sanitizer are compiled with the same flags into the same folder;
//! `fuzz/tests/it.rs` is one of them and runs each target for a few seconds.
//!
//! Inputs that reached new code are kept in `fuzz/corpus/TARGET`, those that failed in
//! `fuzz/artifacts/TARGET`.

use std::fs;
use std::path::Path;

use crate::processes::succeed;

/// Where everything with these flags is compiled, since nothing else can use it.
pub(crate) const DIRECTORY: &str = "target/sanitized";

/// The machine, which is named so that build scripts and macros do without the flags.
pub(crate) const HOST: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

/// The address sanitizer, and what libFuzzer needs to see which code an input reaches and what it is compared
/// with.
pub(crate) const FLAGS: &str = "-Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
    --cfg fuzzing";

/// A target's name, and options of libFuzzer or files that are its input.
pub(crate) fn fuzz(target: &str, options: &[String]) -> Result<(), String> {
    build(target)?;
    run(target, options)
}

fn build(target: &str) -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["build", "--locked", "--profile", "sanitized", "--target", HOST]);
    cargo.args(["-p", "cattlegrid-fuzz", "--features", "cattlegrid-fuzz/libfuzzer", "--bin", target]);
    cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", DIRECTORY);
    succeed(&mut cargo, "cargo")
}

fn run(target: &str, options: &[String]) -> Result<(), String> {
    let root = Path::new(crate::root());
    let [corpus, artifacts] = ["corpus", "artifacts"].map(|name| format!("fuzz/{name}/{target}/"));
    for directory in [&corpus, &artifacts] {
        fs::create_dir_all(root.join(directory)).map_err(|error| format!("{directory}: {error}"))?;
    }
    let program = root.join(DIRECTORY).join(HOST).join("sanitized").join(target);
    let mut fuzzer = crate::command(&program.to_string_lossy());
    fuzzer.arg(format!("-artifact_prefix={artifacts}")).args(options);
    // Inputs that are named are run once each; without any it makes its own.
    if options.iter().all(|option| option.starts_with('-')) {
        fuzzer.arg(corpus);
    }
    fuzzer.env("ASAN_OPTIONS", "detect_odr_violation=0");
    succeed(&mut fuzzer, target)
}

/// A target of this name.
pub(crate) fn target(name: &str) -> Result<String, String> {
    let all = targets();
    if all.iter().any(|target| target == name) {
        Ok(name.to_owned())
    } else {
        Err(format!("there are {}", all.join(", ")))
    }
}

/// The names of all targets, by their files.
fn targets() -> Vec<String> {
    let files = fs::read_dir(format!("{}/fuzz/fuzz_targets", crate::root())).into_iter().flatten().flatten();
    let stem = |entry: fs::DirEntry| Some(entry.path().file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> = files.filter_map(stem).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_are_known_by_name() {
        assert!(["store", "text"].iter().all(|name| super::target(name).is_ok()));
        assert!(super::target("stroe").is_err_and(|error| error.contains("script_state, store, text, tree")));
    }
}
