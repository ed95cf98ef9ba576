//! Memory that the system refuses: `ulimit -v`, or `vm.overcommit_memory = 2`. And the limits of control
//! groups, which do not refuse but kill.
//!
//! A refused allocation ends the process, and the cache with it, unless the caller can do without it. That is
//! so for what an input makes large at once: it is asked for with `try_reserve`, where it leaves room for the
//! rest. The rest (replies, tables, a node of a map) is small and everywhere, so room is kept for it: where
//! the system may refuse memory at all, the lanes look once a millisecond whether [`HEADROOM_BYTES`] could be
//! had, from the system or, except for [`LARGEST_BYTES`] of them, from what the allocator has left. If not,
//! memory is short: until there is room again no connection is accepted, each that keeps a buffer beyond its
//! turn is closed, and each round of a lane closes the connection that keeps most; one whose buffer is that
//! of a large command loses the command only, which is refused. Connections without buffers go on being
//! served.
//!
//! # Invariants
//! * Nothing is short where memory is not limited, and nothing is tried there except for a buffer that grows
//!   by a lot.
//! * One thread tries at a time, so that two do not take the room from each other and find none.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::sys::HEADROOM_BYTES;
use crate::{log, sys};

/// Bytes that the system itself must still give: for buffers that find no gap in what the allocator has left.
const LARGEST_BYTES: usize = 4 << 20;

/// Whether memory is short. See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// The system may refuse memory.
    limited: AtomicBool,
    short: AtomicBool,
    /// When it was tried last, in milliseconds.
    tried_ms: AtomicU64,
    trying: AtomicBool,
    /// Connections closed or not accepted for it.
    pub(crate) refused: AtomicU64,
}

impl Shortage {
    /// Looks at the limits of the system; once a second.
    pub(crate) fn look_at_limits(&self) {
        self.limited.store(sys::memory_may_be_refused(), Relaxed);
    }

    /// Whether memory may be short, or is.
    pub(crate) fn may_be(&self) -> bool {
        self.limited.load(SeqCst) || self.short.load(SeqCst)
    }

    /// Tries whether there is room, once a millisecond at most.
    pub(crate) fn look(&self, now_ms: u64) {
        if self.limited.load(Relaxed) || self.is_short() {
            self.look_with(now_ms, |bytes| {
                let from_system = || bytes.saturating_sub(sys::free_heap_bytes()).max(LARGEST_BYTES);
                sys::could_map(bytes) || sys::could_map(from_system())
            });
        }
    }

    fn look_with(&self, now_ms: u64, is_there: impl Fn(usize) -> bool) {
        if self.tried_ms.load(Relaxed) == now_ms || self.trying.swap(true, Relaxed) {
            return;
        }
        self.tried_ms.store(now_ms, Relaxed);
        // A little more, or it would be short again at once.
        let wanted = if self.is_short() { HEADROOM_BYTES / 16 * 17 } else { HEADROOM_BYTES };
        let short = self.limited.load(Relaxed) && !is_there(wanted);
        if short && !self.short.swap(short, Relaxed) {
            log::warning(
                "the system refuses memory: connections that need some are closed, new ones are refused",
            );
        }
        self.short.store(short, Relaxed);
        self.trying.store(false, Relaxed);
    }

    /// Whether connections must give up their buffers.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }
}

/// Whether what must be free is so beside an allocation of `bytes`.
pub(crate) fn leaves_room(bytes: usize) -> bool {
    sys::could_map(bytes.saturating_add(HEADROOM_BYTES))
}

/// Most memory, in bytes, that the control groups of this process allow: the least of its own and its
/// ancestors'.
pub(crate) fn cgroup_memory_max() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    memory_max_under(Path::new("/sys/fs/cgroup"), &groups)
}

/// The limit of [`cgroup_memory_max`], of the groups `groups` (as in `/proc/self/cgroup`) mounted at `root`.
fn memory_max_under(root: &Path, groups: &str) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (top, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let own = top.join(path.trim_start_matches('/'));
        for group in own.ancestors().take_while(|group| group.starts_with(&top)) {
            let bytes = std::fs::read_to_string(group.join(file)).ok();
            // `max` is no limit.
            let bytes = bytes.and_then(|text| text.trim().parse::<u64>().ok());
            least = least.into_iter().chain(bytes).min();
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn short_and_over() {
        let shortage = Shortage::default();
        let (room, tried) = (Cell::new(HEADROOM_BYTES), Cell::new(0));
        let look = |now_ms| {
            shortage.look_with(now_ms, |bytes| {
                tried.set(tried.get() + 1);
                bytes <= room.get()
            });
            shortage.is_short()
        };
        shortage.limited.store(true, Relaxed);
        assert!(!look(1));
        room.set(HEADROOM_BYTES - 1);
        assert!(!look(1), "once a millisecond");
        assert!(look(2));
        room.set(HEADROOM_BYTES);
        assert!(look(3), "too little to be over");
        room.set(HEADROOM_BYTES * 2);
        assert!(!look(4));
        assert_eq!(tried.get(), 4);
        room.set(0);
        assert!(look(5));
        shortage.limited.store(false, Relaxed);
        shortage.look(6);
        assert!(!shortage.is_short(), "no limit any more");
        shortage.look(7);
    }

    #[test]
    fn the_least_limit_of_a_control_group_and_its_ancestors() {
        let dir = tempfile::tempdir().unwrap();
        let (root, group) = (dir.path(), "0::/a/b\n");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join("memory/c")).unwrap();
        assert_eq!(memory_max_under(root, group), None);
        std::fs::write(root.join("a/b/memory.max"), "max\n").unwrap();
        assert_eq!(memory_max_under(root, group), None);
        std::fs::write(root.join("a/memory.max"), "1000\n").unwrap();
        assert_eq!(memory_max_under(root, group), Some(1000));
        std::fs::write(root.join("a/b/memory.max"), "500\n").unwrap();
        assert_eq!(memory_max_under(root, group), Some(500));
        std::fs::write(root.join("memory/c/memory.limit_in_bytes"), "400\n").unwrap();
        assert_eq!(memory_max_under(root, "5:cpu,memory:/c\n4:cpuset:/\n0::/a/b\n"), Some(400));
        assert_eq!(memory_max_under(root, "nonsense"), None);
    }
}
