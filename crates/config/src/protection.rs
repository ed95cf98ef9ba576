//! The keys of `[server]` for rules and control keys.

use cattlegrid_tags::{PrefixError, Prefixes};

use crate::problems::Problems;
use crate::value::TextValue;

/// The default beginning of control keys.
const CONTROL: &str = "@";

/// Memory and limits of rules and control keys, with the defaults of keys that `[server]` lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    /// The beginning of control keys; empty: there are no control keys.
    pub control: String,
    /// The prefixes that clients put before each key.
    pub prefixes: Prefixes,
    /// This server's name among the nodes of its fleet; None: host name and port.
    pub node: Option<String>,
    /// Memory for the numbers of tags, in bytes; a part of the memory limit, as are the next two.
    pub tag_bytes: usize,
    /// Memory for open misses, in bytes.
    pub ledger_bytes: usize,
    /// Memory for the last event of each key, in bytes.
    pub fence_bytes: usize,
    /// The most gets that are held, of all keys together.
    pub waiters: usize,
    /// The most commands that are read behind a held get of the same connection.
    pub read_ahead: usize,
}

/// The keys of `[server]` that are not options, while they are being read.
#[derive(Debug, Default, Clone)]
pub(crate) struct ServerDraft {
    pub(crate) control: Option<String>,
    pub(crate) prefixes: Vec<TextValue>,
    pub(crate) node: Option<TextValue>,
    pub(crate) tag_bytes: Option<usize>,
    pub(crate) ledger_bytes: Option<usize>,
    pub(crate) fence_bytes: Option<usize>,
    pub(crate) waiters: Option<usize>,
    pub(crate) read_ahead: Option<usize>,
}

impl ServerDraft {
    /// The prefixes; none if they are refused.
    pub(crate) fn prefixes(&self) -> Prefixes {
        self.read_prefixes().unwrap_or_default()
    }

    fn read_prefixes(&self) -> Result<Prefixes, PrefixError> {
        let texts: Vec<&str> = self.prefixes.iter().map(|text| &*text.text).collect();
        Prefixes::new(&texts)
    }

    /// Reports mistakes in the prefixes.
    pub(crate) fn check_prefixes(&self, problems: &mut Problems) {
        let text = |place: usize| &self.prefixes[place];
        match self.read_prefixes() {
            Ok(_) => {}
            Err(error @ PrefixError::TooMany(_)) => {
                problems.add(text(0).offset, format!("[server]: prefixes: {error}"));
            }
            Err(error @ (PrefixError::Length(place) | PrefixError::Twice(place))) => {
                let TextValue { text, offset } = text(place);
                problems.add(*offset, format!("[server]: prefixes {text:?}: {error}"));
            }
            Err(error) => problems.add(0, format!("[server]: prefixes: {error}")),
        }
        if let Some(TextValue { text, offset }) = &self.node {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".:_-".contains(&byte);
            if text.is_empty() || !text.bytes().all(is_allowed) {
                let problem = format!("[server]: node {text:?}: must be a name of letters, digits and .:_-");
                problems.add(*offset, problem);
            }
        }
        let control = self.control.as_deref().unwrap_or(CONTROL);
        for TextValue { text, offset } in &self.prefixes {
            let is_like = text.starts_with(control) || control.starts_with(&**text);
            if text.contains(|c: char| c == ' ' || c.is_ascii_control()) {
                problems.add(
                    *offset,
                    format!("[server]: prefixes {text:?}: no key has blanks or control characters"),
                );
            }
            if text.starts_with("_lock") || text.starts_with("lock:") {
                let problem = format!(
                    "[server]: prefixes {text:?}: clients use keys that begin with it as locks, which have no rule; leave it out"
                );
                problems.add(*offset, problem);
            }
            if !control.is_empty() && !text.is_empty() && is_like {
                let problem = format!(
                    "[server]: prefixes {text:?}: control keys begin with {control:?} (control); choose another one of them"
                );
                problems.add(*offset, problem);
            }
        }
    }

    /// The settings, with the defaults for a memory limit of `memory_bytes`.
    pub(crate) fn resolve(&self, memory_bytes: usize) -> Protection {
        let part = |usual: usize, least: usize, most: usize| {
            (memory_bytes / usual).max(least.min(memory_bytes / most))
        };
        let ledger_bytes = self.ledger_bytes.unwrap_or(part(32, 4 << 20, 8));
        let fence_bytes = self.fence_bytes.unwrap_or(part(128, 1 << 20, 16));
        // Tables that are too small make valid items look old; but half of the memory, less the other two
        // tables, is enough.
        let left = (memory_bytes / 2).saturating_sub(ledger_bytes.saturating_add(fence_bytes));
        let share = memory_bytes / 32;
        let most = (memory_bytes / 8).min(left).max(share);
        Protection {
            control: self.control.clone().unwrap_or_else(|| CONTROL.to_owned()),
            prefixes: self.prefixes(),
            node: self.node.as_ref().map(|node| node.text.clone()),
            tag_bytes: self.tag_bytes.unwrap_or(share.max(8 << 20).min(most)),
            ledger_bytes,
            fence_bytes,
            waiters: self.waiters.unwrap_or(1 << 16),
            read_ahead: self.read_ahead.unwrap_or(1024),
        }
    }
}
