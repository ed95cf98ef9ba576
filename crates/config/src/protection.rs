//! What `[server]` says of rules and control keys.

/// Memory and limits of rules and control keys, with the defaults of what `[server]` leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    /// What control keys begin with; empty: there are none.
    pub control: String,
    /// Memory for the numbers of tags, in bytes; a part of the memory limit, as the next two.
    pub tag_bytes: usize,
    /// Memory for open misses, in bytes.
    pub ledger_bytes: usize,
    /// Memory for the last event of each key, in bytes.
    pub fence_bytes: usize,
    /// Largest number of gets that are held, of all keys together.
    pub waiters: usize,
    /// Largest number of commands that are read behind a held get of the same connection.
    pub read_ahead: usize,
}

/// The keys of `[server]` that are no options, as they are being read.
#[derive(Debug, Default, Clone)]
pub(crate) struct ServerDraft {
    pub(crate) control: Option<String>,
    pub(crate) tag_bytes: Option<usize>,
    pub(crate) ledger_bytes: Option<usize>,
    pub(crate) fence_bytes: Option<usize>,
    pub(crate) waiters: Option<usize>,
    pub(crate) read_ahead: Option<usize>,
}

impl ServerDraft {
    /// With the defaults of what was not said, for a memory limit of `memory_bytes`.
    pub(crate) fn resolve(&self, memory_bytes: usize) -> Protection {
        let part = |usual: usize, least: usize, most: usize| {
            (memory_bytes / usual).max(least.min(memory_bytes / most))
        };
        let ledger_bytes = self.ledger_bytes.unwrap_or(part(32, 4 << 20, 8));
        let fence_bytes = self.fence_bytes.unwrap_or(part(128, 1 << 20, 16));
        // Tables that are too small make valid items look old; but what the others leave of half of the memory is enough.
        let left = (memory_bytes / 2).saturating_sub(ledger_bytes.saturating_add(fence_bytes));
        let share = memory_bytes / 32;
        let most = (memory_bytes / 8).min(left).max(share);
        Protection {
            control: self.control.clone().unwrap_or_else(|| "@".to_owned()),
            tag_bytes: self.tag_bytes.unwrap_or(share.max(8 << 20).min(most)),
            ledger_bytes,
            fence_bytes,
            waiters: self.waiters.unwrap_or(1 << 16),
            read_ahead: self.read_ahead.unwrap_or(64),
        }
    }
}
