//! `cattlegrid check FILE --try KEY`: a key with its rule and its loader, for running the loader once.

use std::path::Path;
use std::sync::Arc;

use cattlegrid_engine::rules::Rule;

use crate::error::ConfigError;
use crate::loader::LoaderSettings;
use crate::own_types::TypeLoader;
use crate::rule_file::RuleFile;
use crate::settings::Settings;

/// A key for which a loader can be run once.
#[derive(Debug, Clone)]
pub struct LoaderTrial {
    /// The key as a client would send it.
    pub key: String,
    /// The rule, which names the loader.
    pub rule: Arc<Rule>,
    /// The length of the server's prefix with which the key begins, in bytes.
    pub prefix_len: usize,
    /// The loader.
    pub loader: LoaderSettings,
    /// The settings of a server that is started with the file alone.
    pub settings: Settings,
}

impl LoaderTrial {
    /// The trial of `key` under the file at `path`; `types` loads users' own types.
    ///
    /// # Errors
    /// The file has mistakes, or a server would refuse the settings; or the key is invalid, or no loader
    /// computes its value.
    pub fn new(path: &Path, key: &str, types: &'static dyn TypeLoader) -> Result<Self, ConfigError> {
        let file = RuleFile::load(path, types)?;
        let settings = file.settings().map_err(|error| ConfigError::of(path, error))?;
        let wrong = |problem: &str| ConfigError::one(path, format_args!("--try {key:?}: {problem}"));
        if !(1..=KEY_BYTES_MAX).contains(&key.len())
            || key.contains(|c: char| c == ' ' || c.is_ascii_control())
        {
            return Err(wrong("must be a key, 1 to 250 bytes without blanks"));
        }
        let Some((rule, captures)) = file.rules.find(key.as_bytes()) else {
            let loaded = file.rules.rules().iter().find(|rule| rule.loading.is_some());
            return Err(wrong(&match loaded {
                None => "no [[rule]] of the file names a loader".to_owned(),
                Some(rule) => {
                    format!("it has no rule; a loader computes {}, for instance", rule.pattern.text())
                }
            }));
        };
        let rule = Arc::clone(rule);
        let named = rule
            .loading
            .as_ref()
            .and_then(|loading| file.loaders.iter().find(|loader| *loader.name == *loading.loader));
        let Some(loader) = named.cloned() else {
            let (number, pattern) = (rule.number, rule.pattern.text());
            return Err(wrong(&format!(
                "its rule {number}, {pattern}, names no loader; clients compute the value"
            )));
        };
        let prefix_len = key.len() - captures.name().len();
        Ok(Self { key: key.to_owned(), prefix_len, rule, loader, settings })
    }
}

/// The longest key in bytes, as in memcached.
pub(crate) const KEY_BYTES_MAX: usize = 250;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_types::NoScripts;

    const TEXT: &str = "[server]\nmax_item_size = \"2MiB\"\n[[rule]]\nmatch = \"page:{id}\"\nloader = \"pages\"\n\
                        [[rule]]\nmatch = \"user:{id}\"\nhold = \"1s\"\n\
                        [loader.other]\ncommand = [\"sh\"]\n[loader.pages]\ncommand = [\"sh\"]\n";

    fn trial(text: &str, key: &str) -> Result<LoaderTrial, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = format!("{}: ", file.path().display());
        LoaderTrial::new(file.path(), key, &NoScripts).map_err(|error| error.to_string().replace(&path, ""))
    }

    #[test]
    fn a_key_has_the_loader_of_its_rule() {
        let LoaderTrial { key, rule, loader, settings, prefix_len: _ } = trial(TEXT, "page:7").unwrap();
        assert_eq!((key.as_str(), rule.number, loader.name.as_str()), ("page:7", 1, "pages"));
        assert_eq!(settings.item_bytes_max, 2 << 20);
        let longest = format!("page:{}", "é".repeat(122) + "x");
        assert_eq!(trial(TEXT, &longest).unwrap().key.len(), 250);
    }

    #[test]
    fn keys_that_no_loader_computes() {
        let no_key = "must be a key, 1 to 250 bytes without blanks";
        for (key, expected) in [
            ("user:7", "its rule 2, user:{id}, names no loader; clients compute the value"),
            ("page:7:8", "it has no rule; a loader computes page:{id}, for instance"),
            ("page:7_lock", "it has no rule; a loader computes page:{id}, for instance"),
            ("", no_key),
            ("page: 7", no_key),
            ("page:\n", no_key),
            (&format!("page:{}", "x".repeat(246)), no_key),
        ] {
            assert_eq!(trial(TEXT, key).unwrap_err(), format!("--try {key:?}: {expected}"));
        }
        let error = trial("[[rule]]\nmatch = \"a\"\n", "b").unwrap_err();
        assert_eq!(error, "--try \"b\": no [[rule]] of the file names a loader");
        assert!(
            trial("[server]\nmemory_limit = 16\nmax_item_size = \"9MiB\"", "k").unwrap_err().contains("-I: ")
        );
        assert!(trial("x = 1", "k").unwrap_err().contains("is unknown"));
    }
}
