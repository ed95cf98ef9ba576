//! `cargo xtask release`: the optimised program, and its symbols in a file beside it.
//!
//! A plain `cargo build --release` has no debug information. Here the program is compiled with it, and it is
//! moved into `cattlegrid.debug`, where debuggers and profilers look for it by the link that stays in the
//! program. Both are of one compilation, so that addresses agree.

use std::fs;
use std::path::Path;

use crate::processes::succeed;

const PROGRAM: &str = "target/release/cattlegrid";
const SYMBOLS: &str = "target/release/cattlegrid.debug";

/// Builds both and says how large they are. Needs `objcopy`, which comes with a C compiler.
pub(crate) fn release() -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["build", "--release", "--locked", "-p", "cattlegrid"]);
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only").env("CARGO_PROFILE_RELEASE_STRIP", "none");
    succeed(&mut cargo, "cargo")?;
    // Cargo's own copy of the program is a link to the same file, and stays as it is.
    succeed(crate::command("objcopy").args(["--only-keep-debug", PROGRAM, SYMBOLS]), "objcopy")?;
    let stripped = format!("{PROGRAM}.stripped");
    let link = format!("--add-gnu-debuglink={SYMBOLS}");
    succeed(crate::command("objcopy").args(["--strip-debug", &link, PROGRAM, &stripped]), "objcopy")?;
    let [program, stripped] = [PROGRAM, stripped.as_str()].map(|path| Path::new(crate::root()).join(path));
    fs::rename(&stripped, &program).map_err(|error| format!("{PROGRAM}: {error}"))?;
    for path in [PROGRAM, SYMBOLS] {
        let file = fs::metadata(Path::new(crate::root()).join(path));
        let bytes = file.map_err(|error| format!("{path}: {error}"))?.len();
        eprintln!("{path}: {} KiB", bytes / 1024);
    }
    Ok(())
}
