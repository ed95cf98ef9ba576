//! Packages: see `docs/install.md`.

mod sbom;

use std::path::Path;
use std::process::Command;

/// The usage of `cargo xtask package`.
const USAGE: &str = "usage: cargo xtask package <what>
  deb [--no-build PROFILE] [--version VERSION]   the Debian package, in target/package; --no-build: of the program that this profile has built
  musl                                           the program without shared libraries, in target/package
  crates                                         what would be published of each public crate, as a trial
  sbom                                           the bill of materials, CycloneDX, in target/package";

/// Where packages are put, in the root of the repository.
const DIRECTORY: &str = "target/package";

/// Makes what `words` name.
pub(crate) fn package(words: &[&str]) -> Result<(), String> {
    let directory = format!("{}/{DIRECTORY}", crate::root());
    std::fs::create_dir_all(&directory).map_err(|error| format!("{directory}: {error}"))?;
    match words {
        ["sbom"] => sbom::write(&format!("{directory}/cattlegrid.cdx.json")),
        ["musl"] => musl(),
        ["crates"] => crates(),
        ["deb", options @ ..] => {
            sbom::write(&format!("{directory}/cattlegrid.cdx.json"))?;
            deb(options)
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn deb(mut options: &[&str]) -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["deb", "--package", "cattlegrid", "--locked", "--output", DIRECTORY]);
    loop {
        options = match options {
            [] => return run(cargo, "cargo deb (cargo install --locked cargo-deb)"),
            ["--no-build", profile, rest @ ..] => {
                // For tests: a package of a program that was not built for it is compressed little.
                cargo.args(["--no-build", "--fast", "--profile", profile]);
                rest
            }
            ["--version", version, rest @ ..] => {
                cargo.args(["--deb-version", version]);
                rest
            }
            _ => return Err(USAGE.to_owned()),
        };
    }
}

/// Crates of this repository that need each other: those that are not published yet are taken from here. They
/// are not compiled, since other stages do.
fn crates() -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["publish", "--workspace", "--dry-run", "--no-verify", "--locked", "--allow-dirty"]);
    run(cargo, "cargo publish")
}

const MUSL: &str = "x86_64-unknown-linux-musl";

/// C and C++ (the virtual machine of scripts) are compiled by zig, which comes with musl and a library of
/// C++.
fn musl() -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["zigbuild", "--release", "--locked", "--package", "cattlegrid", "--target", MUSL]);
    run(
        cargo,
        "cargo zigbuild (rustup target add x86_64-unknown-linux-musl; pip install ziglang; cargo install --locked cargo-zigbuild)",
    )?;
    let (built, name) =
        (format!("{}/target/{MUSL}/release/cattlegrid", crate::root()), "cattlegrid-x86_64-musl");
    let copy = format!("{}/{DIRECTORY}/{name}", crate::root());
    std::fs::copy(Path::new(&built), &copy).map_err(|error| format!("{copy}: {error}"))?;
    eprintln!("{DIRECTORY}/{name}");
    Ok(())
}

fn run(mut command: Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{what}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}")) }
}
