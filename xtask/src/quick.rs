//! `cargo xtask quick [CRATE]...`: what a developer waits for after an edit.
//!
//! Layout and clippy of the crates, then their tests and those of the crates that are built on them, without
//! exhaustive orders and long histories (the profile `quick` of `.config/nextest.toml`). Without a name, the
//! crates are those that git finds changed. A leaf's own tests come first: they are compiled in seconds, and
//! what is built on it takes longer.
//!
//! The tests of dependants are compiled with the features of `cargo xtask test`, so that each finds what the
//! other has compiled. `fuzz/draw.rs` and fuzz targets are also modules of other crates' tests: name those
//! crates after an edit there.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Deserialize;

/// Steps of the engine's simulation: about two seconds.
const SIM_STEPS: &str = "200000";

pub(crate) fn quick(names: &[&str]) -> Result<(), String> {
    let packages = packages()?;
    let chosen = if names.is_empty() { changed(&packages)? } else { named(&packages, names)? };
    if chosen.is_empty() {
        return Err("no file of a crate is changed since the last commit; name one: cargo xtask quick engine. A file that \
                    concerns all crates (Cargo.toml, Cargo.lock, clippy.toml) is checked by: cargo xtask test --stage lints \
                    --stage unit"
            .to_owned());
    }
    let tested = with_dependants(&packages, &chosen);
    eprintln!("quick: {}; tests of {}", chosen.join(", "), tested.join(", "));
    let begin = crate::test::now();
    ensure_nextest()?;
    let packages_of: Vec<&str> = chosen.iter().flat_map(|name| ["-p", name]).collect();
    timed("format", begin, &["fmt", "--check"], &packages_of)?;
    // What the stage of this name checks.
    let features: &[&str] = if chosen.contains(&"xtask") { &["--features", "xtask/documents"] } else { &[] };
    let lints = [&packages_of[..], features, &["--", "-D", "warnings"]].concat();
    timed("lints", begin, &["clippy", "--quiet", "--locked", "--all-targets"], &lints)?;
    let mut tested = tested;
    if chosen.iter().all(|name| is_leaf(&packages, name)) {
        timed("own tests", begin, TESTS, &packages_of)?;
        tested.retain(|name| !chosen.contains(name));
    }
    if tested.is_empty() {
        return Ok(());
    }
    let filter: Vec<String> = tested.iter().map(|name| format!("package(={name})")).collect();
    timed(
        "tests",
        begin,
        TESTS,
        &["--workspace", "--features", "xtask/documents", "-E", &filter.join(" or ")],
    )
}

const TESTS: &[&str] =
    &["nextest", "run", "--locked", "--cargo-quiet", "--no-tests", "pass", "--profile", "quick"];

fn cargo(words: &[&str]) -> Command {
    let mut cargo = crate::command("cargo");
    cargo.args(words);
    cargo
}

/// Runs a step of cargo and says how long it took, and everything so far.
fn timed(step: &str, begin: Instant, words: &[&str], more: &[&str]) -> Result<(), String> {
    let start = crate::test::now();
    let status = cargo(&[words, more].concat()).env("SIM_STEPS", SIM_STEPS).status();
    let status = status.map_err(|error| format!("{step}: {error}"))?;
    let [took, all] = [start, begin].map(|since| since.elapsed().as_secs_f64());
    if !status.success() {
        return Err(format!("{step}: failed after {took:.1} s"));
    }
    eprintln!("quick: {step} {took:.1} s, {all:.1} s in all");
    Ok(())
}

/// Installs the runner of tests where it is missing.
fn ensure_nextest() -> Result<(), String> {
    let mut probe = cargo(&["nextest", "--version"]);
    if probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    eprintln!("quick: installing cargo-nextest, once");
    let status = cargo(&["install", "--locked", "cargo-nextest"]).status();
    if status.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err("cargo-nextest cannot be installed: cargo install --locked cargo-nextest".to_owned())
    }
}

/// A package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// With a slash at its end, below the root.
    #[serde(rename = "manifest_path")]
    folder: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`; None: of the program itself.
    kind: Option<String>,
}

/// All packages, as cargo knows them.
pub(crate) fn packages() -> Result<Vec<Package>, String> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
        workspace_root: String,
    }
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1", "--locked"]).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let root = format!("{}/", metadata.workspace_root);
    let below = |mut package: Package| {
        let folder = package.folder.strip_prefix(&root)?.strip_suffix("Cargo.toml")?.to_owned();
        package.folder = folder;
        Some(package)
    };
    Ok(metadata.packages.into_iter().filter_map(below).collect())
}

/// The packages of these names, with or without `cattlegrid-`, each once.
fn named<'a>(packages: &'a [Package], names: &[&str]) -> Result<Vec<&'a str>, String> {
    let all = || packages.iter().map(|package| package.name.as_str());
    let find = |name: &&str| {
        let full = format!("cattlegrid-{name}");
        all().find(|package| package == name || *package == full).ok_or_else(|| {
            let known: Vec<_> = all().map(|name| name.strip_prefix("cattlegrid-").unwrap_or(name)).collect();
            format!("there is no crate {name}; there are {}", known.join(", "))
        })
    };
    let found: BTreeSet<&str> = names.iter().map(find).collect::<Result<_, _>>()?;
    Ok(found.into_iter().collect())
}

/// The packages whose files differ from the last commit.
fn changed(packages: &[Package]) -> Result<Vec<&str>, String> {
    let mut git = crate::command("git");
    let output = git
        .args(["status", "--porcelain", "-z", "--untracked-files=all"])
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err("git does not say what is changed; name a crate: cargo xtask quick engine".to_owned());
    }
    Ok(owners(packages, &String::from_utf8_lossy(&output.stdout)))
}

/// The packages that the files of `git status --porcelain -z` belong to; a file that was moved, those of both of
/// its places.
fn owners<'a>(packages: &'a [Package], status: &str) -> Vec<&'a str> {
    let files = files(status);
    let is_changed = |package: &&Package| files.iter().any(|file| file.starts_with(&package.folder));
    packages.iter().filter(is_changed).map(|package| package.name.as_str()).collect()
}

/// The paths of `git status --porcelain -z`: each behind its two letters and a blank, the one where a file was
/// before it was moved as an entry without.
fn files(status: &str) -> Vec<&str> {
    let (mut files, mut entries) = (Vec::new(), status.split_terminator('\0'));
    while let Some(entry) = entries.next() {
        files.extend(entry.get(3..));
        if entry.get(..2).is_some_and(|letters| letters.contains(['R', 'C'])) {
            files.extend(entries.next());
        }
    }
    files
}

/// These packages, and all of `crates/` that are built on them.
fn with_dependants<'a>(packages: &'a [Package], chosen: &[&'a str]) -> Vec<&'a str> {
    let mut found: BTreeSet<&str> = chosen.iter().copied().collect();
    loop {
        let uses_found = |package: &&Package| package.own(packages).any(|name| found.contains(name));
        let is_new = |package: &&Package| {
            package.folder.starts_with("crates/") && !found.contains(package.name.as_str())
        };
        let more = packages.iter().filter(is_new).filter(uses_found).map(|package| package.name.as_str());
        let more: Vec<&str> = more.collect();
        if more.is_empty() {
            return found.into_iter().collect();
        }
        found.extend(more);
    }
}

/// Whether a package is built on no other, or on such only: it and its tests are compiled in seconds.
fn is_leaf(packages: &[Package], name: &str) -> bool {
    let of = |name: &str| packages.iter().find(|package| package.name == name);
    let is_first = |name: &str| of(name).is_some_and(|package| package.own(packages).next().is_none());
    of(name).is_some_and(|package| package.own(packages).all(is_first))
}

impl Package {
    /// The packages of the workspace that it is built on; those of its tests do not count.
    fn own<'a>(&'a self, packages: &'a [Self]) -> impl Iterator<Item = &'a str> {
        let own = self.dependencies.iter().filter(|dependency| dependency.kind.is_none());
        let own = own.map(|dependency| dependency.name.as_str());
        own.filter(|name| packages.iter().any(|package| package.name == *name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_found_by_both_names() {
        let packages = packages().unwrap();
        let both = named(&packages, &["engine", "cattlegrid-store", "cattlegrid", "xtask", "store"]);
        assert_eq!(both, Ok(vec!["cattlegrid", "cattlegrid-engine", "cattlegrid-store", "xtask"]));
        let error = named(&packages, &["motor"]).unwrap_err();
        assert!(
            error.starts_with("there is no crate motor; there are ") && error.contains(", engine, "),
            "{error}"
        );
    }

    #[test]
    fn changed_files_name_their_crates() {
        let packages = packages().unwrap();
        let status = " M crates/engine/src/lib.rs\0R  crates/store/a.rs\0crates/herd/a.rs\0?? docs/new.md\0 M crates/enginex\0\
                      ?? crates/tags/\u{fc}/a -> b\0";
        let mut owners = owners(&packages, status);
        owners.sort_unstable();
        assert_eq!(owners, ["cattlegrid-engine", "cattlegrid-herd", "cattlegrid-store", "cattlegrid-tags"]);
        assert_eq!(
            files(status)[..4],
            ["crates/engine/src/lib.rs", "crates/store/a.rs", "crates/herd/a.rs", "docs/new.md"]
        );
    }

    #[test]
    fn dependants_are_those_that_ship_with_it() {
        let packages = packages().unwrap();
        let of_tags = with_dependants(&packages, &["cattlegrid-tags"]);
        for name in ["cattlegrid-tags", "cattlegrid-engine", "cattlegrid-server", "cattlegrid"] {
            assert!(of_tags.contains(&name), "{name} in {of_tags:?}");
        }
        // Its tests use a server, it does not.
        assert!(
            !of_tags.contains(&"cattlegrid-client") && !of_tags.contains(&"cattlegrid-store-bench"),
            "{of_tags:?}"
        );
        assert_eq!(with_dependants(&packages, &["cattlegrid-store-bench"]), ["cattlegrid-store-bench"]);
    }

    #[test]
    fn leaves_are_built_on_next_to_nothing() {
        let packages = packages().unwrap();
        for name in ["protocol", "store", "herd", "tags", "objects", "worker", "ring", "panic"] {
            assert!(is_leaf(&packages, &format!("cattlegrid-{name}")), "{name}");
        }
        for name in ["engine", "server", "pool", "scripts"] {
            assert!(!is_leaf(&packages, &format!("cattlegrid-{name}")), "{name}");
        }
    }
}
