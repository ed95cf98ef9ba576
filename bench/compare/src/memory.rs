//! RAM per item: how much a server's process grows when it is filled.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Result;
use cattlegrid_compare::loads::plan;
use cattlegrid_load::Plan;
use serde_json::{Value, json};

use crate::servers::{KINDS, Programs, Server, ServerKind};
use crate::{place, progress};

const MEMORY_MIB: u64 = 1024;

/// The table, and its figures.
#[expect(clippy::cast_precision_loss, reason = "counts of items and bytes of this machine")]
pub(crate) fn compare(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let items: u64 = if quick { 300_000 } else { 1_500_000 };
    let mut text = format!(
        "{items} items with keys of 32 bytes and values of 100: items per MiB that the process has grown \
         (bytes per item); in bold divided by memcached's.\n\n\
         | items | cattlegrid | memcached | redis |\n|---|---|---|---|\n"
    );
    let mut raw = Vec::new();
    for (name, flags) in [("client flags 0", 0), ("client flags 1", 1)] {
        let mut bytes = Vec::new();
        for kind in KINDS {
            if kind == ServerKind::Redis && flags != 0 {
                continue; // it has none
            }
            progress(&format!("memory, {name}: {}", kind.name()));
            let server = Server::start(programs, kind, MEMORY_MIB)?;
            let before = server.resident_bytes()?;
            let plan = Arc::new(Plan { flags, ..plan(items) });
            server.open(&plan, 8, 64)?.fill(server.meter())?;
            let grown = server.resident_bytes()?.saturating_sub(before);
            bytes.push(grown as f64 / items as f64);
            raw.push(json!({ "items": items, "flags": flags, "server": kind.name(), "grown_bytes": grown }));
        }
        write!(text, "| {name} ")?;
        for kind in KINDS {
            let Some(own) = bytes.get(place(kind)) else {
                text.push_str("| has none ");
                continue;
            };
            write!(text, "| {:.0} ({own:.1})", f64::from(1 << 20) / own)?;
            if kind != ServerKind::Memcached {
                write!(text, " **{:.2}**", bytes[place(ServerKind::Memcached)] / own)?;
            }
            text.push(' ');
        }
        text.push_str("|\n");
    }
    Ok((text, json!(raw)))
}
