//! The documentation as a site, and its links.
//!
//! mdBook makes the site of the files that stand in the repository. They are copied to a folder in which they
//! have the same places to each other, so that a link that works on a forge works in the site:
//! `docs/SUMMARY.md` names the pages of `docs/`, [`FIRST`] and [`LAST`] are other pages, and what any page
//! links to besides is copied as it is.
//!
//! Links are checked twice: in the files, with the anchors that forges make of headings ([`links`]), and in
//! the site. Nothing is fetched: addresses of other sites are not checked.

mod links;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::processes::succeed;

/// Pages outside of `docs/` that come before its pages: title, path.
const FIRST: &[(&str, &str)] = &[("Cattlegrid", "README.md")];

/// Those that come after, for contributors.
const LAST: &[(&str, &str)] = &[
    ("Contributing", "CONTRIBUTING.md"),
    ("Conformance suite", "conformance/README.md"),
    ("Benchmarks", "bench/README.md"),
    ("Traces", "bench/traces/README.md"),
    ("Alerts and dashboards", "contrib/README.md"),
    ("Changes", "CHANGELOG.md"),
];

/// Where the files are put together, and the site; from the root of the repository.
const SOURCES: &str = "target/site-sources";
const SITE: &str = "target/site";

/// Builds the site and checks the links of the files and of the site.
///
/// # Errors
/// mdBook is missing or fails, or a link is broken; each broken link is named.
pub(crate) fn build() -> Result<(), String> {
    report(&links::broken()?)?;
    let root = Path::new(crate::root());
    let sources = root.join(SOURCES);
    for folder in [SOURCES, SITE] {
        if root.join(folder).exists() {
            fs::remove_dir_all(root.join(folder)).map_err(|error| format!("{folder}: {error}"))?;
        }
    }
    let folders = put_together(&sources)?;
    let site = root.join(SITE).canonicalize().unwrap_or_else(|_| root.join(SITE));
    let mut mdbook = crate::command(&mdbook());
    mdbook.arg("build").arg("--dest-dir").arg(&site).arg(&sources);
    succeed(&mut mdbook, "mdbook")
        .map_err(|error| format!("{error}; if it is missing: {}", MDBOOK.join(" ")))?;
    for folder in &folders {
        write(&site.join(folder).join("index.html"), &listing(&root.join(folder), folder)?)?;
    }
    report(&broken_in(&site)?)?;
    eprintln!("{SITE}/index.html");
    Ok(())
}

/// How mdBook is installed: without its server, which takes most of its time to compile.
pub(crate) const MDBOOK: &[&str] = &[
    "cargo",
    "install",
    "--locked",
    "mdbook",
    "--version",
    "0.5.4",
    "--no-default-features",
    "--features",
    "search",
];

/// Where mdBook is: in the path, or where `cargo install` puts programs.
fn mdbook() -> String {
    let variable = |name: &str| std::env::var(name).ok();
    let home = variable("CARGO_HOME").or_else(|| variable("HOME").map(|home| format!("{home}/.cargo")));
    let installed = home.map(|home| format!("{home}/bin/mdbook")).filter(|path| Path::new(path).exists());
    let is_in_path = variable("PATH")
        .is_some_and(|path| path.split(':').any(|dir| Path::new(dir).join("mdbook").exists()));
    installed.filter(|_| !is_in_path).unwrap_or_else(|| "mdbook".to_owned())
}

fn report(broken: &[String]) -> Result<(), String> {
    if broken.is_empty() {
        return Ok(());
    }
    Err(format!("{} broken links:\n{}", broken.len(), broken.join("\n")))
}

/// Copies all that the site is made of. The folders that pages link to, for which mdBook makes no page.
fn put_together(sources: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let root = Path::new(crate::root());
    let book = read(&root.join("book.toml"))?;
    // The style sheet is named from where the book is.
    let book = book.replace("src = \"docs\"", "src = \"src\"").replace("xtask/site.css", "site.css");
    write(&sources.join("book.toml"), &book)?;
    copy(&root.join("xtask/site.css"), &sources.join("site.css"))?;
    let summary = read(&root.join("docs/SUMMARY.md"))?;
    write(&sources.join("src/SUMMARY.md"), &whole_summary(&summary))?;
    let mut folders = BTreeSet::new();
    for page in pages(&summary) {
        write(
            &sources.join("src").join(indexed(&page.to_string_lossy())),
            &in_site(&read(&root.join(&page))?),
        )?;
        for link in links::of(&page)? {
            let Some(target) = link.path.filter(|target| target.extension().is_none_or(|end| end != "md"))
            else {
                continue;
            };
            if root.join(&target).is_dir() {
                for file in files(&root.join(&target))? {
                    copy(&root.join(&target).join(&file), &sources.join("src").join(&target).join(&file))?;
                }
                folders.insert(target);
            } else {
                copy(&root.join(&target), &sources.join("src").join(&target))?;
            }
        }
    }
    Ok(folders)
}

/// The pages of the site, from the root of the repository.
fn pages(summary: &str) -> Vec<PathBuf> {
    let others = FIRST.iter().chain(LAST).map(|(_, path)| PathBuf::from(path));
    chapters(summary).into_iter().map(|name| Path::new("docs").join(name)).chain(others).collect()
}

/// The files that a summary names.
fn chapters(summary: &str) -> Vec<String> {
    let link = Regex::new(r"\]\(([^)]+\.md)\)").expect("an expression");
    link.captures_iter(summary).map(|found| found[1].to_owned()).collect()
}

/// A page with links to `index.md` in the place of `README.md`: mdBook makes `index.html` of both, and finds
/// only the former.
fn in_site(text: &str) -> String {
    let link = Regex::new(r"\]\(([^) ]*)README\.md").expect("an expression");
    link.replace_all(text, "](${1}index.md").into_owned()
}

fn indexed(path: &str) -> String {
    path.replace("README.md", "index.md")
}

/// The summary of the site: `docs/SUMMARY.md` as seen from the root, with the pages outside of `docs/`.
fn whole_summary(summary: &str) -> String {
    let entry = |mark: &str, (title, path): &(&str, &str)| format!("{mark}[{title}]({})\n", indexed(path));
    let (heading, chapters) = summary.split_once("\n\n").expect("a heading");
    let first: String = FIRST.iter().map(|page| entry("", page)).collect();
    let last: String = LAST.iter().map(|page| entry("- ", page)).collect();
    format!("{heading}\n\n{first}\n{}{last}", chapters.replace("](", "](docs/"))
}

/// A page that lists the files of a folder.
fn listing(folder: &Path, name: &Path) -> Result<String, String> {
    let title = format!("<title>{0}</title>\n<h1>{0}</h1>", name.display());
    let item = |file: &PathBuf| format!("<li><a href=\"{0}\">{0}</a></li>", file.display());
    let items = files(folder)?.iter().map(item).collect::<Vec<_>>().join("\n");
    Ok(format!("<!DOCTYPE html>\n<meta charset=\"utf-8\">\n{title}\n<ul>\n{items}\n</ul>\n"))
}

/// The tracked files below a folder, by their paths from it.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let output = crate::command("git")
        .arg("ls-files")
        .current_dir(folder)
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect())
}

/// The links of the site that lead nowhere.
fn broken_in(site: &Path) -> Result<Vec<String>, String> {
    let link = Regex::new(r#"(?:href|src)="([^"]*)""#).expect("an expression");
    let mut broken = Vec::new();
    let mut count = 0;
    for page in html(site)? {
        let text = read(&page)?;
        for found in link.captures_iter(&text) {
            let target = found[1].replace("&amp;", "&");
            if target.contains(':') || target.starts_with("//") {
                continue;
            }
            count += 1;
            if let Some(why) = missing(&page, &target)? {
                broken
                    .push(format!("{}: {target}: {why}", page.strip_prefix(site).unwrap_or(&page).display()));
            }
        }
    }
    eprintln!("{count} links of the site checked");
    Ok(broken)
}

/// Why a link of a page leads nowhere, if it does.
fn missing(page: &Path, target: &str) -> Result<Option<&'static str>, String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = path.split('?').next().unwrap_or_default();
    let mut file = if path.is_empty() {
        page.to_owned()
    } else {
        page.parent().expect("a folder").join(links::decoded(path))
    };
    if file.is_dir() {
        file.push("index.html");
    }
    if !file.is_file() {
        return Ok(Some("there is no such file"));
    }
    let has = |text: &str| text.contains(&format!("id=\"{}\"", links::decoded(anchor)));
    let is_there =
        anchor.is_empty() || file.extension().is_none_or(|end| end != "html") || has(&read(&file)?);
    Ok((!is_there).then_some("there is no such heading"))
}

/// The pages of the site, except mdBook's own list for browsers without scripts, which is checked by the
/// pages that show it.
fn html(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            found.extend(html(&path)?);
        } else if path.extension().is_some_and(|end| end == "html") && !path.ends_with("404.html") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::create_dir_all(path.parent().expect("a folder"))
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to.parent().expect("a folder"))
        .and_then(|()| fs::copy(from, to))
        .map(drop)
        .map_err(|error| format!("{}: {error}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_docs_is_in_the_summary_once() {
        let root = Path::new(crate::root());
        let mut named = chapters(&read(&root.join("docs/SUMMARY.md")).unwrap());
        named.push("SUMMARY.md".to_owned());
        named.sort();
        let mut there: Vec<String> = fs::read_dir(root.join("docs"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
            .collect();
        there.sort();
        assert_eq!(named, there);
    }

    #[test]
    fn the_summary_of_the_site_is_seen_from_the_root() {
        let whole = whole_summary("# Documentation\n\n# First\n\n- [Herd](herd.md)\n");
        assert!(whole.starts_with("# Documentation\n\n[Cattlegrid](index.md)\n\n# First\n"), "{whole}");
        assert!(whole.contains("- [Herd](docs/herd.md)\n- [Contributing](CONTRIBUTING.md)\n"), "{whole}");
    }

    #[test]
    fn links_to_a_readme_lead_to_an_index() {
        assert_eq!(in_site("[a](../README.md#b), README.md"), "[a](../index.md#b), README.md");
    }

    #[test]
    fn a_link_of_a_page_needs_its_file_and_its_heading() {
        let folder = std::env::temp_dir().join(format!("site-{}", std::process::id()));
        write(&folder.join("docs/a.html"), "<h1 id=\"one\">One</h1>").unwrap();
        write(&folder.join("index.html"), "").unwrap();
        let page = folder.join("index.html");
        for (target, why) in [
            ("docs/a.html", None),
            ("docs/a.html#one", None),
            ("docs/a.html#two", Some("there is no such heading")),
            ("docs/b.html", Some("there is no such file")),
            ("docs", Some("there is no such file")),
            ("#one", Some("there is no such heading")),
        ] {
            assert_eq!(missing(&page, target).unwrap(), why, "{target}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
