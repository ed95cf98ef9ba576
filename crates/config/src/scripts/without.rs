//! Built without scripts: a directory that has any is refused.

use std::path::Path;
use std::sync::Arc;

use cattlegrid_objects::{Host, Settings as Registered};

use super::{Findings, ScriptLimits, Tested, WITHOUT, is_source};

/// Files of a directory: never any.
#[derive(Debug, Clone)]
pub(super) struct Sources;

type Loaded = (Arc<dyn Host>, Sources, Vec<String>);

pub(super) fn load(dir: &Path, _limits: ScriptLimits) -> Result<Option<Loaded>, Vec<String>> {
    let cannot = |error| vec![format!("{} cannot be read: {error}", dir.display())];
    for entry in dir.read_dir().map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if is_source(&path) {
            let name = path.file_name().unwrap_or_default().display();
            return Err(vec![format!("has {name}, a type of your own; {WITHOUT}")]);
        }
    }
    Ok(None)
}

impl Sources {
    /// None.
    #[expect(clippy::unused_self, reason = "as with scripts")]
    pub(super) fn libraries(&self) -> Vec<String> {
        Vec::new()
    }
}

pub(super) fn test(_sources: &Sources, _settings: &Registered) -> Tested {
    Tested::default()
}

pub(super) fn keep_tests(_sources: &mut Sources, _file: &Path) {}

pub(super) fn lint(_dir: &Path) -> Result<Findings, String> {
    Err("this program was built without scripts (cargo feature `scripts`)".to_owned())
}
