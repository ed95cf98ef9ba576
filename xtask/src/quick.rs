//! `cargo xtask quick [CRATE]...`: what a developer waits for after an edit.
//!
//! Layout and clippy of the crates, then their tests and those of the crates that are built on them, without
//! exhaustive orders and long histories (the profile `quick` of `.config/nextest.toml`). Without a name, the
//! crates are those that git finds changed. The own tests of leaves come first: they are compiled in seconds, and
//! what is built on them takes longer.
//!
//! The tests of dependants are compiled with the features of `cargo xtask test`, so that each finds what the
//! other has compiled. A file of `fuzz/` that tests of other crates have as a module concerns those crates, too.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Deserialize;

use crate::processes::{now, succeed};

/// Steps of the engine's simulation: about two seconds.
const SIM_STEPS: &str = "200000";

pub(crate) fn quick(names: &[String]) -> Result<(), String> {
    let packages = packages()?;
    let chosen = if names.is_empty() { changed(&packages)? } else { named(&packages, names)? };
    let tested = with_dependants(&packages, &chosen);
    eprintln!("quick: {}; tests of {}", chosen.join(", "), tested.join(", "));
    let begin = now();
    ensure_nextest()?;
    let packages_of: Vec<&str> = chosen.iter().flat_map(|name| ["-p", name]).collect();
    timed("format", begin, &["fmt", "--check"], &packages_of)?;
    // What the stage of this name checks.
    let features: &[&str] = if chosen.contains(&"xtask") { &["--features", "xtask/documents"] } else { &[] };
    let lints = [&packages_of[..], features, &["--", "-D", "warnings"]].concat();
    timed("lints", begin, &["clippy", "--quiet", "--locked", "--all-targets"], &lints)?;
    let mut tested = tested;
    let leaves: Vec<&str> = chosen.iter().copied().filter(|name| is_leaf(&packages, name)).collect();
    if !leaves.is_empty() {
        let packages_of: Vec<&str> = leaves.iter().flat_map(|name| ["-p", name]).collect();
        timed("own tests", begin, TESTS, &packages_of)?;
        tested.retain(|name| !leaves.contains(name));
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
    let start = now();
    let mut cargo = cargo(&[words, more].concat());
    let done = succeed(cargo.env("SIM_STEPS", SIM_STEPS), step);
    let [took, all] = [start, begin].map(|since| since.elapsed().as_secs_f64());
    done.map_err(|error| format!("{error}, after {took:.1} s"))?;
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
    succeed(&mut cargo(&["install", "--locked", "cargo-nextest"]), "cargo install --locked cargo-nextest")
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

/// The packages of these names, with or without `cattlegrid-`, or that these paths are in, each once.
fn named<'a>(packages: &'a [Package], names: &[String]) -> Result<Vec<&'a str>, String> {
    let find = |name: &String| {
        let full = format!("cattlegrid-{name}");
        let mut by_name = packages.iter().filter(|package| package.name == *name || package.name == full);
        let by_path = || {
            let path = crate::from_root(name)?;
            packages.iter().find(|package| path.starts_with(&package.folder))
        };
        by_name.next().or_else(by_path).map(|package| package.name.as_str()).ok_or_else(|| {
            let names = packages.iter().map(|package| package.name.as_str());
            let known: BTreeSet<&str> =
                names.map(|name| name.strip_prefix("cattlegrid-").unwrap_or(name)).collect();
            let known: Vec<&str> = known.into_iter().collect();
            format!("there is no crate {name}; there are {}", known.join(", "))
        })
    };
    let found: BTreeSet<&str> = names.iter().map(find).collect::<Result<_, _>>()?;
    Ok(found.into_iter().collect())
}

/// The packages whose files differ from the last commit.
fn changed(packages: &[Package]) -> Result<Vec<&str>, String> {
    let status = git(&["status", "--porcelain", "-z", "--untracked-files=all"])?;
    let status = status.ok_or("git does not say what is changed; name a crate: cargo xtask quick engine")?;
    let mut files: Vec<String> = files(&status).into_iter().map(str::to_owned).collect();
    let modules: Vec<String> =
        files.iter().filter(|file| file.starts_with("fuzz/")).map(|file| format!("/{file}\"")).collect();
    for module in modules {
        let users = git(&["grep", "--files-with-matches", "-z", "--fixed-strings", &module, "--", "*.rs"])?;
        files.extend(users.unwrap_or_default().split_terminator('\0').map(str::to_owned));
    }
    let owners = owners(packages, &files);
    if owners.is_empty() { Err(no_crate(&files)) } else { Ok(owners) }
}

/// Where what is changed is tested, if no file of a crate is.
fn no_crate(files: &[String]) -> String {
    let changed = match files {
        [] => "no file is changed since the last commit".to_owned(),
        [file] => format!("{file} is changed, which is of no crate"),
        [file, others @ ..] => format!("{file} and {} more are changed, which are of no crate", others.len()),
    };
    format!(
        "{changed}. Name a crate: cargo xtask quick engine. Stages for other files: lints and unit for Cargo.toml, \
         Cargo.lock and clippy.toml; python, python-client and python-frameworks for python/; conformance-a-l and \
         conformance-m-z for conformance/; words, site and documents for *.md: cargo xtask test --stage NAME"
    )
}

/// What a command of git prints; None if it fails, or finds nothing.
fn git(words: &[&str]) -> Result<Option<String>, String> {
    let output = crate::command("git").args(words).output().map_err(|error| format!("git: {error}"))?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// The packages that these files belong to.
fn owners<'a>(packages: &'a [Package], files: &[String]) -> Vec<&'a str> {
    let is_changed = |package: &&Package| files.iter().any(|file| file.starts_with(&package.folder));
    packages.iter().filter(is_changed).map(|package| package.name.as_str()).collect()
}

/// The paths of `git status --porcelain -z`, of a file that was moved both: each behind its two letters and a blank, the one where a file was
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
    use std::path::Path;

    use super::*;

    #[test]
    fn crates_are_found_by_both_names() {
        let packages = packages().unwrap();
        let named =
            |names: &[&str]| named(&packages, &names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        // Paths are from the folder of this crate, where the tests run.
        let all = [
            "engine",
            "cattlegrid-store",
            "cattlegrid",
            "src/main.rs",
            "store",
            "../crates/tags/",
            "./../bench/store",
        ];
        let expected = [
            "cattlegrid",
            "cattlegrid-engine",
            "cattlegrid-store",
            "cattlegrid-store-bench",
            "cattlegrid-tags",
            "xtask",
        ];
        assert_eq!(named(&all), Ok(expected.to_vec()));
        let error = named(&["motor"]).unwrap_err();
        assert!(
            error.starts_with("there is no crate motor; there are cattlegrid, client, ")
                && error.contains(", engine, "),
            "{error}"
        );
    }

    #[test]
    fn changed_files_name_their_crates() {
        let packages = packages().unwrap();
        let status = " M crates/engine/src/lib.rs\0R  crates/store/a.rs\0crates/herd/a.rs\0?? docs/new.md\0 M crates/enginex\0\
                      ?? crates/tags/\u{fc}/a -> b\0";
        let files: Vec<String> = files(status).into_iter().map(str::to_owned).collect();
        assert_eq!(
            files[..4],
            ["crates/engine/src/lib.rs", "crates/store/a.rs", "crates/herd/a.rs", "docs/new.md"]
        );
        let mut owners = owners(&packages, &files);
        owners.sort_unstable();
        assert_eq!(owners, ["cattlegrid-engine", "cattlegrid-herd", "cattlegrid-store", "cattlegrid-tags"]);
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
    #[test]
    fn what_is_of_no_crate_is_named() {
        assert!(no_crate(&[]).starts_with("no file is changed since the last commit. "));
        let files = ["README.md", "python/a.py"].map(str::to_owned);
        assert!(no_crate(&files[..1]).starts_with("README.md is changed, which is of no crate. "));
        assert!(no_crate(&files).starts_with("README.md and 1 more are changed, "));
    }

    /// A name that is left out of the profile and exists no more would leave nothing out.
    #[test]
    fn the_tests_that_are_left_out_exist() {
        let config: String =
            std::fs::read_to_string(format!("{}/.config/nextest.toml", crate::root())).unwrap();
        let filter = config.split("\"\"\"").nth(1).unwrap();
        let packages = packages().unwrap();
        let word = regex::Regex::new("[a-z_]{4,}").unwrap();
        let mut count = 0;
        for part in filter.split("package(=").skip(1) {
            let (name, rest) = part.split_once(')').unwrap();
            let package = packages.iter().find(|package| package.name == name).unwrap();
            let sources = sources(&Path::new(crate::root()).join(&package.folder));
            for word in word
                .find_iter(rest.split('/').nth(1).unwrap())
                .map(|word| word.as_str().trim_start_matches('_'))
            {
                let is_there = [format!("fn {word}"), format!("mod {word}"), format!("_{word}")]
                    .iter()
                    .any(|text| sources.contains(text));
                assert!(is_there, "{name} has no test {word}");
                count += 1;
            }
        }
        assert!(count > 40, "{count}");
    }

    /// All code below a folder.
    fn sources(folder: &Path) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                text += &sources(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &std::fs::read_to_string(&path).unwrap();
            }
        }
        text
    }
}
