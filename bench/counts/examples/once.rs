//! One kind of request, counted in the profile that ships: `cargo build --release -p cattlegrid-counts
//! --example once`, then `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted*'
//! target/release/examples/once KIND`.
//!
//! `cargo bench` compiles with unwinding, whatever the profile says, and its requests share a lock. So the
//! effect of `panic` in a profile, and the cost of taking a lock, are seen here only. KIND: `get_hit`,
//! `get_miss`, `mg_hit`, `quiet_mg_hit`, `packet_hit`, `quiet_packet_hit`, `set_new`, `set_over`,
//! `set_evicting`, `ruled_hit`, `ruled_hit_bumped`, `ruled_miss`, `park`, `fill_wake`, `quota`,
//! `set_beside_objects`, `share`, `share_reads`, `quota_in_luau`, `get_hit_beside_scripts`: a hundred
//! requests; `locks`: a hundred times a shard's lock, taken and released. A number behind a KIND whose
//! requests change no more than values makes as many times a hundred requests of it.

use std::hint::black_box;

use cattlegrid_counts::{Kind, Load, REQUESTS};

fn main() {
    let kind = match std::env::args().nth(1).as_deref() {
        Some("get_hit" | "locks") => Kind::GetHit,
        Some("get_miss") => Kind::GetMiss,
        Some("mg_hit") => Kind::MetaGetHit,
        Some("quiet_mg_hit") => Kind::QuietMetaGetHit,
        Some("packet_hit") => Kind::PacketHit,
        Some("quiet_packet_hit") => Kind::QuietPacketHit,
        Some("set_new") => Kind::SetNew,
        Some("set_over") => Kind::SetOver,
        Some("set_evicting") => Kind::SetEvicting,
        Some("ruled_hit") => Kind::RuledHit,
        Some("ruled_hit_bumped") => Kind::RuledHitBumped,
        Some("ruled_miss") => Kind::RuledMiss,
        Some("park") => Kind::Park,
        Some("fill_wake") => Kind::FillWake,
        Some("quota") => Kind::Quota,
        Some("set_beside_objects") => Kind::SetBesideObjects,
        Some("share") => Kind::Share,
        Some("share_reads") => Kind::ShareReads,
        Some("quota_in_luau") => Kind::QuotaInLuau,
        Some("get_hit_beside_scripts") => Kind::GetHitBesideScripts,
        other => panic!("{other:?} is not a kind of request"),
    };
    let times = std::env::args().nth(2).map_or(1, |text| text.parse().expect("a number"));
    let mut load = Load::new(kind);
    if std::env::args().nth(1).as_deref() == Some("locks") {
        counted_locks(&load);
    } else {
        black_box(counted(&mut load, times));
    }
}

/// The code that is counted; its name is in the command line above.
#[inline(never)]
fn counted(load: &mut Load, times: u32) -> usize {
    load.run_again(times)
}

/// The same for locks.
#[inline(never)]
fn counted_locks(load: &Load) {
    (0..REQUESTS).for_each(|_| load.lock_once());
}
