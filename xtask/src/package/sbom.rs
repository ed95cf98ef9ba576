//! The bill of materials of the program: every crate that is compiled into it or run to build it, with its
//! version, licence, checksum and dependencies, in the format of `CycloneDX` 1.5.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// Writes it to `path`. The same sources give the same text.
pub(super) fn write(path: &str) -> Result<(), String> {
    let mut cargo = crate::command("cargo");
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", crate::fuzz::HOST]);
    let output = cargo
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", output.status));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let lock = format!("{}/Cargo.lock", crate::root());
    let lock = std::fs::read_to_string(&lock).map_err(|error| format!("{lock}: {error}"))?;
    let bill = bill(&metadata, &checksums(&lock)).ok_or("cargo metadata: not of the form that is known")?;
    let text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{path}: {error}"))
}

/// By name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]")
        .filter_map(|part| {
            let field = |name: &str| {
                let line = part.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
                line.and_then(|value| value.strip_suffix('"'))
            };
            Some(((field("name")?, field("version")?), field("checksum")?))
        })
        .collect()
}

fn bill(metadata: &Value, checksums: &BTreeMap<(&str, &str), &str>) -> Option<Value> {
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()?
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let (root, _) = packages.iter().find(|(_, package)| package["name"] == "cattlegrid")?;
    let mut graph = BTreeMap::new();
    let mut left = vec![*root];
    while let Some(id) = left.pop() {
        if graph.contains_key(id) {
            continue;
        }
        let needed = needed(nodes.get(id)?);
        left.extend(&needed);
        graph.insert(id, needed);
    }
    let component = |id: &str| {
        let package = packages.get(id)?;
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        let mut component = json!({
            "type": if id == *root { "application" } else { "library" },
            "bom-ref": reference(package),
            "name": name,
            "version": version,
            "purl": reference(package),
        });
        if let Some(description) = package["description"].as_str() {
            component["description"] = description.trim().into();
        }
        if let Some(licence) = package["license"].as_str() {
            // A slash is the old way to write OR.
            component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
        }
        if let Some(checksum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        Some(component)
    };
    let others: Option<Vec<_>> = graph.keys().filter(|id| *id != root).map(|id| component(id)).collect();
    let dependencies: Vec<_> = graph
        .iter()
        .map(|(id, needed)| {
            let needed: BTreeSet<_> = needed.iter().map(|id| reference(packages[id])).collect();
            json!({ "ref": reference(packages[id]), "dependsOn": needed })
        })
        .collect();
    Some(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(root)? },
        "components": others?,
        "dependencies": dependencies,
    }))
}

/// The dependencies that a crate needs to be compiled and to run, but not to be tested.
fn needed<'m>(node: &'m Value) -> Vec<&'m str> {
    let is_needed = |dependency: &&'m Value| {
        let kinds = dependency["dep_kinds"].as_array();
        kinds.is_none_or(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev"))
    };
    let all = node["deps"].as_array().into_iter().flatten();
    all.filter(is_needed).filter_map(|dependency| dependency["pkg"].as_str()).collect()
}

/// The package's URL.
fn reference(package: &Value) -> String {
    let word = |name: &str| package[name].as_str().unwrap_or_default().replace('+', "%2B");
    format!("pkg:cargo/{}@{}", word("name"), word("version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compiled_in_is_named_with_its_checksum_and_tests_are_not() {
        let package = |name: &str| json!({ "id": name, "name": name, "version": "1.0.0+a", "license": "MIT/Apache-2.0" });
        let dependency = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("cattlegrid"), package("a"), package("b"), package("c")],
            "resolve": { "nodes": [
                { "id": "cattlegrid", "deps": [dependency("a", Value::Null), dependency("b", "dev".into())] },
                { "id": "a", "deps": [dependency("c", "build".into())] },
                { "id": "b", "deps": [] },
                { "id": "c", "deps": [] },
            ] },
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0+a\"\nchecksum = \"12ab\"\n\n[[package]]\nname = \"c\"\nversion = \"1.0.0+a\"\n";
        let bill = bill(&metadata, &checksums(lock)).unwrap();
        let names: Vec<_> =
            bill["components"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(bill["metadata"]["component"]["name"], "cattlegrid");
        let first = &bill["components"][0];
        assert_eq!(first["hashes"][0]["content"], "12ab");
        assert_eq!(first["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(first["purl"], "pkg:cargo/a@1.0.0%2Ba");
        assert_eq!(bill["dependencies"][0]["dependsOn"][0], "pkg:cargo/c@1.0.0%2Ba");
    }
}
