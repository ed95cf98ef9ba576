//! Documents, the man page and completions of shells, which are written from the code.

mod commands;
mod completions;
mod man;
mod objects;

/// Writes those that are not current.
pub(crate) fn write() -> Result<(), String> {
    for (path, text) in outdated()? {
        std::fs::write(format!("{}/{path}", crate::root()), text)
            .map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// An error that names one that is not current, if there is any.
pub(crate) fn check() -> Result<(), String> {
    match outdated()?.first() {
        Some((path, _)) => Err(format!("{path} is not current; run `cargo xtask docs`")),
        None => Ok(()),
    }
}

fn outdated() -> Result<Vec<(&'static str, String)>, String> {
    let mut generated = vec![
        ("docs/configuration.md", cattlegrid_config::reference_markdown()),
        ("docs/statistics.md", cattlegrid_server::stats::reference_markdown()),
        (objects::PAGE, objects::page(&read(objects::PAGE)?)?),
        (man::PAGE, man::page()?),
    ];
    generated.extend(completions::files()?);
    generated.retain(|(path, text)| !read(path).is_ok_and(|current| current == *text));
    Ok(generated)
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(format!("{}/{path}", crate::root())).map_err(|error| format!("{path}: {error}"))
}
