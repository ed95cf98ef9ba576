//! Packages: see `docs/install.md`.

mod sbom;

use std::path::Path;

use clap::Subcommand;

use crate::processes::succeed;

#[derive(Debug, Subcommand)]
pub(crate) enum PackageKind {
    /// The Debian package
    Deb {
        /// Of the program that this profile has built, compressed little
        #[arg(long, value_name = "PROFILE")]
        no_build: Option<String>,
        /// The version of the package; that of the program without it
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
    /// The program without shared libraries
    Musl,
    /// What would be published of each public crate, as a trial
    Crates,
    /// The bill of materials, `CycloneDX`
    Sbom,
}

/// Where packages are put, in the root of the repository.
const DIRECTORY: &str = "target/package";

pub(crate) fn package(kind: &PackageKind) -> Result<(), String> {
    let directory = format!("{}/{DIRECTORY}", crate::root());
    std::fs::create_dir_all(&directory).map_err(|error| format!("{directory}: {error}"))?;
    let write_bill = || sbom::write(&format!("{directory}/cattlegrid.cdx.json"));
    match kind {
        PackageKind::Sbom => write_bill(),
        PackageKind::Musl => musl(),
        PackageKind::Crates => crates(),
        PackageKind::Deb { no_build, version } => {
            write_bill()?;
            deb(no_build.as_deref(), version.as_deref())
        }
    }
}

fn deb(no_build: Option<&str>, version: Option<&str>) -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["deb", "--package", "cattlegrid", "--locked", "--output", DIRECTORY]);
    if let Some(profile) = no_build {
        cargo.args(["--no-build", "--fast", "--profile", profile]);
    }
    if let Some(version) = version {
        cargo.args(["--deb-version", version]);
    }
    succeed(&mut cargo, "cargo deb (if it is missing: cargo install --locked cargo-deb)")
}

/// Crates of this repository that need each other: those that are not published yet are taken from here. They
/// are not compiled, since other stages do.
fn crates() -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["publish", "--workspace", "--dry-run", "--no-verify", "--locked", "--allow-dirty"]);
    succeed(&mut cargo, "cargo publish")
}

const MUSL: &str = "x86_64-unknown-linux-musl";

/// C and C++ (the virtual machine of scripts) are compiled by zig, which comes with musl and a library of
/// C++.
fn musl() -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["zigbuild", "--release", "--locked", "--package", "cattlegrid", "--target", MUSL]);
    succeed(
        &mut cargo,
        "cargo zigbuild (if it is missing: rustup target add x86_64-unknown-linux-musl; pip install ziglang; cargo install --locked cargo-zigbuild)",
    )?;
    let (built, name) =
        (format!("{}/target/{MUSL}/release/cattlegrid", crate::root()), "cattlegrid-x86_64-musl");
    let copy = format!("{}/{DIRECTORY}/{name}", crate::root());
    std::fs::copy(Path::new(&built), &copy).map_err(|error| format!("{copy}: {error}"))?;
    eprintln!("{DIRECTORY}/{name}");
    Ok(())
}
