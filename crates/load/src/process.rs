//! What another process uses: processor time and memory.

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

/// A running process on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(i32);

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

    /// Memory it has in RAM, in bytes.
    pub fn resident_bytes(self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
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
    fn a_process_that_is_not_there() {
        for pid in [0, PID_MAX, i32::MAX as u32, u32::MAX] {
            assert!(Process::new(pid).is_err(), "{pid}");
        }
    }
}
