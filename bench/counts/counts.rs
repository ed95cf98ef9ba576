//! Instructions of a hundred requests: `cargo bench -p cattlegrid-counts`, which needs `valgrind` and
//! `gungraun-runner`.

#![expect(missing_docs, unused_qualifications, reason = "what the macros make")]

use std::hint::black_box;

use cattlegrid_counts::{Kind, Load};
use gungraun::{library_benchmark, library_benchmark_group, main};

#[library_benchmark(setup = Load::new)]
#[bench::get(Kind::GetHit)]
#[bench::mg(Kind::MetaGetHit)]
#[bench::packet(Kind::PacketHit)]
#[bench::set(Kind::SetNew)]
fn parse(load: Load) -> (u32, Load) {
    (black_box(load.parse()), load)
}

#[library_benchmark(setup = Load::new)]
#[bench::get_hit(Kind::GetHit)]
#[bench::get_miss(Kind::GetMiss)]
#[bench::mg_hit(Kind::MetaGetHit)]
#[bench::quiet_mg_hit(Kind::QuietMetaGetHit)]
#[bench::packet_hit(Kind::PacketHit)]
#[bench::quiet_packet_hit(Kind::QuietPacketHit)]
#[bench::set_new(Kind::SetNew)]
#[bench::set_over(Kind::SetOver)]
#[bench::set_evicting(Kind::SetEvicting)]
#[bench::ruled_hit(Kind::RuledHit)]
#[bench::ruled_hit_bumped(Kind::RuledHitBumped)]
#[bench::ruled_miss(Kind::RuledMiss)]
#[bench::park(Kind::Park)]
#[bench::fill_wake(Kind::FillWake)]
#[bench::quota(Kind::Quota)]
#[bench::set_beside_objects(Kind::SetBesideObjects)]
#[bench::share(Kind::Share)]
#[bench::share_reads(Kind::ShareReads)]
#[bench::quota_in_luau(Kind::QuotaInLuau)]
#[bench::get_hit_beside_scripts(Kind::GetHitBesideScripts)]
fn whole(mut load: Load) -> (usize, Load) {
    (black_box(load.run()), load)
}

library_benchmark_group!(name = requests, benchmarks = [parse, whole]);
main!(library_benchmark_groups = requests);
