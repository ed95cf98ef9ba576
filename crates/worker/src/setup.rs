//! Limits and privileges of a worker, applied between fork and its first job.
//!
//! # Invariant
//! Applying them makes system calls only: everything is formatted before the fork.

use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid};

/// Resource limits of a worker process. `None` leaves the parent's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of address space (`RLIMIT_AS`); allocations beyond it fail.
    pub address_space: Option<u64>,
    /// Seconds of CPU (`RLIMIT_CPU`); the worker gets SIGXCPU there.
    pub cpu_secs: Option<u64>,
    /// Highest descriptor number plus one (`RLIMIT_NOFILE`).
    pub nofile: Option<u64>,
    /// Bytes of a core file (`RLIMIT_CORE`). Default 0: none.
    pub core: Option<u64>,
    /// Added niceness, -20..=19. Default 0; below 0 needs privilege.
    pub nice: i32,
    /// `oom_score_adj`, -1000..=1000. Default 500: the kernel prefers a worker to its parent.
    pub oom_score_adj: Option<i32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            address_space: None,
            cpu_secs: None,
            nofile: None,
            core: Some(0),
            nice: 0,
            oom_score_adj: Some(500),
        }
    }
}

/// Privileges that are taken from a worker.
///
/// Landlock and seccomp filters are not offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// `PR_SET_NO_NEW_PRIVS`: set-user-id programs give no rights. Default true.
    pub no_new_privs: bool,
    /// User and group to become, each below 2^32 - 1; supplementary groups are dropped. Needs privilege.
    /// Default `None`.
    pub uid_gid: Option<(u32, u32)>,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { no_new_privs: true, uid_gid: None }
    }
}

/// Limits and sandbox together, as they travel in `FORK`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setup {
    /// Resource limits.
    pub limits: Limits,
    /// Privileges.
    pub sandbox: Sandbox,
}

impl Setup {
    /// Bytes of the encoded form.
    pub const LEN: usize = 52;

    /// Appends the encoded form: four `u64` (address space, cpu seconds, descriptors, core; all ones
    /// for none), `i32` nice, `i32` `oom_score_adj` (`i32::MIN` for none), `u32` uid, `u32` gid (all ones
    /// for none), `u32` flags (bit 0: `no_new_privs`).
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Limits { address_space, cpu_secs, nofile, core, nice, oom_score_adj } = self.limits;
        for limit in [address_space, cpu_secs, nofile, core] {
            out.extend_from_slice(&limit.unwrap_or(u64::MAX).to_le_bytes());
        }
        out.extend_from_slice(&nice.to_le_bytes());
        out.extend_from_slice(&oom_score_adj.unwrap_or(i32::MIN).to_le_bytes());
        let (uid, gid) = self.sandbox.uid_gid.unwrap_or((u32::MAX, u32::MAX));
        out.extend_from_slice(&uid.to_le_bytes());
        out.extend_from_slice(&gid.to_le_bytes());
        out.extend_from_slice(&u32::from(self.sandbox.no_new_privs).to_le_bytes());
    }

    /// Reads the encoded form; `None` if `bytes` is shorter than [`Setup::LEN`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::LEN)?;
        let long = |at: usize| {
            let value = u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?);
            (value != u64::MAX).then_some(value)
        };
        let short = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or_default();
        let oom = short(36).cast_signed();
        let (uid, gid) = (short(40), short(44));
        Some(Self {
            limits: Limits {
                address_space: long(0),
                cpu_secs: long(8),
                nofile: long(16),
                core: long(24),
                nice: short(32).cast_signed(),
                oom_score_adj: (oom != i32::MIN).then_some(oom),
            },
            sandbox: Sandbox {
                no_new_privs: short(48) & 1 == 1,
                uid_gid: (uid != u32::MAX || gid != u32::MAX).then_some((uid, gid)),
            },
        })
    }
}

/// A [`Setup`] with everything formatted in advance: applying it allocates nothing, so it may run
/// between fork and exec.
#[derive(Debug)]
pub(crate) struct PreparedSetup {
    setup: Setup,
    /// The digits for `oom_score_adj`.
    oom: Option<String>,
}

impl PreparedSetup {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self { setup: setup.clone(), oom: setup.limits.oom_score_adj.map(|adj| adj.to_string()) }
    }

    /// Applies all of it; system calls only.
    ///
    /// # Errors
    /// The first refusal, except that `oom_score_adj` is best effort: lowering it below the parent's
    /// needs privilege, and a worker that the kernel kills later than asked is not a reason to fail.
    pub(crate) fn apply(&self) -> Result<(), Errno> {
        let Limits { address_space, cpu_secs, nofile, core, nice, .. } = self.setup.limits;
        if let Some(digits) = &self.oom {
            write_oom(digits.as_bytes());
        }
        if nice != 0 {
            let base = rustix::process::getpriority_process(None)?;
            rustix::process::setpriority_process(None, base + nice)?;
        }
        if let Some((uid, gid)) = self.setup.sandbox.uid_gid {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        if self.setup.sandbox.no_new_privs {
            rustix::thread::set_no_new_privs(true)?;
        }
        let limits = [
            (Resource::Core, core),
            (Resource::Cpu, cpu_secs),
            (Resource::Nofile, nofile),
            (Resource::As, address_space),
        ];
        for (resource, limit) in limits {
            if let Some(limit) = limit {
                rustix::process::setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
            }
        }
        Ok(())
    }
}

fn write_oom(digits: &[u8]) {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(file) = file {
        // Best effort, see `apply`.
        rustix::io::write(&file, digits).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives_the_wire() {
        let full = Setup {
            limits: Limits {
                address_space: Some(1 << 30),
                cpu_secs: Some(3),
                nofile: Some(64),
                core: None,
                nice: -5,
                oom_score_adj: Some(-17),
            },
            sandbox: Sandbox { no_new_privs: false, uid_gid: Some((65_534, 0)) },
        };
        for setup in [full, Setup::default()] {
            let mut bytes = Vec::new();
            setup.encode(&mut bytes);
            assert_eq!(bytes.len(), Setup::LEN);
            assert_eq!(Setup::decode(&bytes), Some(setup));
            assert_eq!(Setup::decode(&bytes[1..]), None);
        }
    }
}
