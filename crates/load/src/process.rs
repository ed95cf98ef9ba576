//! Resources that another process uses: processor time and memory.

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::{Pid, SysconfVar, sysconf};

/// A running process on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(i32);

/// Processor time of all threads of a process, from its start or over a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cpu {
    /// In nanoseconds.
    pub total: Duration,
    /// In user mode, in steps of 10 ms: good for the share in it.
    pub user: Duration,
    /// In the kernel, in steps of 10 ms.
    pub system: Duration,
}

impl Cpu {
    /// The processor time used between `before` and this measurement.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            total: self.total.saturating_sub(before.total),
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }

    /// The sum of two times.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            total: self.total + other.total,
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }

    /// The share in user mode, 0.0..=1.0; nothing if less than a step has been used.
    pub fn user_share(self) -> Option<f64> {
        let sum = (self.user + self.system).as_secs_f64();
        (sum > 0.0).then(|| self.user.as_secs_f64() / sum)
    }
}

/// The largest pid the kernel gives (`PID_MAX_LIMIT`).
const PID_MAX: u32 = 1 << 22;

impl Process {
    /// The process of this id, if there is one.
    pub fn new(pid: u32) -> io::Result<Self> {
        // Beyond these are other processes' clocks: the number of a clock has no room for more.
        let valid = (1..=PID_MAX).contains(&pid);
        let process = Self(pid.try_into().ok().filter(|_| valid).ok_or(io::ErrorKind::NotFound)?);
        process.cpu_time()?;
        Ok(process)
    }

    /// Time its threads have spent on processors so far, in user mode and in the kernel.
    ///
    /// From the process's own clock, in nanoseconds: `/proc/PID/stat` has the same sum in steps of 10 ms.
    pub fn cpu_time(self) -> io::Result<Duration> {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.0))?;
        Ok(Duration::from(clock.now()?))
    }

    /// The same, and where it was spent.
    pub fn cpu(self) -> io::Result<Cpu> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0))?;
        let a_second =
            sysconf(SysconfVar::CLK_TCK)?.and_then(|ticks| u32::try_from(ticks).ok()).unwrap_or(100);
        let parts = ticks(&stat).ok_or(io::ErrorKind::InvalidData)?;
        let [user, system] = parts.map(|ticks| Duration::from_secs(ticks) / a_second);
        Ok(Cpu { total: self.cpu_time()?, user, system })
    }

    /// Memory it has in RAM, in bytes.
    pub fn resident_bytes(self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// `utime` and `stime` of a line of `/proc/PID/stat`; the program's name in it may have blanks and brackets.
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let own = Process::new(std::process::id()).unwrap();
        let before = own.cpu_time().unwrap();
        let busy: u64 = (0..1_000_000_u64).map(std::hint::black_box).sum();
        assert!(busy > 0 && own.cpu_time().unwrap() > before);
        assert!(own.resident_bytes().unwrap() > 1 << 20);
    }

    #[test]
    fn time_in_user_mode_and_in_the_kernel() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 9 8 7";
        assert_eq!(ticks(stat), Some([150, 50]));
        assert_eq!(ticks("7 (a) S 1 7"), None);
        let ms = Duration::from_millis;
        let before = Cpu { total: ms(10), user: ms(10), system: ms(0) };
        let later = Cpu { total: ms(52), user: ms(40), system: ms(10) };
        let used = later.since(before);
        assert_eq!(used, Cpu { total: ms(42), user: ms(30), system: ms(10) });
        assert_eq!(used.user_share(), Some(0.75));
        assert_eq!(used.and(before).total, ms(52));
        assert_eq!(Cpu::default().user_share(), None);
        let own = Process::new(std::process::id()).unwrap().cpu().unwrap();
        assert!(own.total > Duration::ZERO && own.user + own.system <= own.total + ms(1000), "{own:?}");
    }

    #[test]
    fn a_process_that_is_not_there() {
        for pid in [0, PID_MAX, i32::MAX as u32, u32::MAX] {
            assert!(Process::new(pid).is_err(), "{pid}");
        }
    }
}
