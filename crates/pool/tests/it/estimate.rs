//! The estimate of the descriptors that a pool needs, against those that it has at `max`. A test binary of
//! its own with one test: the descriptors of the whole process are counted and limited.

use crate::common::*;
use cattlegrid_pool::Launch;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open descriptors, and the largest number of one.
fn open() -> (usize, u64) {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers: Vec<u64> =
        numbers.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect();
    (numbers.len(), *numbers.iter().max().unwrap())
}

fn json_lines() -> Launch {
    let script = format!("{}/tests/apps/lines.sh", env!("CARGO_MANIFEST_DIR"));
    Launch::json_lines("sh", [script])
}

#[test]
fn a_pool_at_max_has_no_more_descriptors_than_estimated() {
    let modes = [
        ("template", template()),
        ("exec", exec()),
        ("stdio", Launch::stdio::<&str>(fixture(), [])),
        ("json_lines", json_lines()),
    ];
    let all = getrlimit(Resource::Nofile);
    for (mode, launch) in modes {
        for (max, spare, passed) in [(1, 0, 0), (6, 0, 3), (12, 3, 0)] {
            let mut builder = quiet(launch.clone()).max(max).idle(max).spare(spare).start(ms(0));
            for number in 0..passed {
                builder = builder.pass_fd(format!("fd{number}"), std::fs::File::open("/dev/null").unwrap());
            }
            let estimate = builder.descriptors();
            let (before, largest) = open();
            let before = before - passed;
            setrlimit(
                Resource::Nofile,
                Rlimit { current: Some(largest + 1 + (estimate - passed) as u64), maximum: all.maximum },
            )
            .unwrap();
            let pool = builder.spawn().wait().unwrap();
            pool.ready(max).wait().unwrap();
            let used = || open().0 - before;
            // Spares come when the others are there; the old ones leave after a reload.
            let is_full = || {
                let is_whole = pool.stats().spawned - pool.stats().exited == (max + spare) as u64;
                is_whole && used() + 20 >= estimate
            };
            eventually("all are there", is_full);
            let at_max = used();
            pool.reload(launch.clone()).wait().unwrap();
            pool.ready(max).wait().unwrap();
            eventually("all are there again", is_full);
            let again = used();
            let stats = pool.stats();
            setrlimit(Resource::Nofile, all).unwrap();
            pool.shutdown().wait();
            let what = format!("{mode}, max {max}, spare {spare}: estimate {estimate}");
            assert_eq!(stats.resource_failures, 0, "{what}: it was short of descriptors");
            assert!(at_max <= estimate && again <= estimate, "{what}, has {at_max} and {again}");
        }
    }
    assert_eq!(quiet(template()).max(usize::MAX).spare(usize::MAX).descriptors(), usize::MAX);
}
