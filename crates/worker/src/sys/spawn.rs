//! Fork and exec of a program with exact descriptors, limits and a death signal.
//!
//! `std::process::Command` cannot place descriptors at chosen numbers without racing its own error
//! pipe, so this is done here. Everything the child needs is prepared before the fork; the child makes
//! system calls only (see the module above).

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::fds::{close_range, move_above};
use crate::setup::{PreparedSetup, Setup};

/// A program to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Name or path; a name without `/` is looked up in the `PATH` of `env`.
    pub program: &'a OsStr,
    /// Arguments after the program's name.
    pub args: &'a [OsString],
    /// The whole environment of the child.
    pub env: &'a [(OsString, OsString)],
    /// Working directory, or the parent's.
    pub dir: Option<&'a Path>,
    /// The descriptors that become 0, 1, 2, 3, ... in the child; all others are closed. 3 to 64 entries.
    pub fds: &'a [BorrowedFd<'a>],
    /// Limits and privileges, applied just before exec.
    pub setup: &'a Setup,
    /// Do not set the death signal: the program outlives its parent and finds out by itself.
    pub outlive: bool,
}

/// A started program; its process group has the same number.
#[derive(Debug)]
pub struct Child {
    /// Process id and process group id.
    pub pid: Pid,
    /// Readable when the process has ended; `None` when the kernel or the descriptor limit forbids it.
    pub pidfd: Option<OwnedFd>,
}

/// The step at which the child failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpawnStep {
    /// In the parent: finding the program, making pipes, forking.
    Fork,
    /// Process group, death signal or descriptors.
    Descriptors,
    /// Limits or privileges.
    Setup,
    /// Working directory.
    Directory,
    /// A name without `/`: no directory in `PATH` has such a program.
    Path,
    /// The exec itself: missing, not executable, wrong format.
    Exec,
}

impl std::fmt::Display for SpawnStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fork => "fork",
            Self::Descriptors => "descriptors",
            Self::Setup => "limits and privileges",
            Self::Directory => "working directory",
            Self::Path => "no such program in PATH",
            Self::Exec => "exec",
        })
    }
}

/// A program that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {program} ({step})")]
pub struct SpawnError {
    /// The program as given.
    pub program: String,
    /// Where it failed.
    pub step: SpawnStep,
    /// The system's reason.
    #[source]
    pub source: io::Error,
}

impl Spawn<'_> {
    /// Starts the program and waits until it has been exec'ed.
    ///
    /// The child gets SIGKILL when the *thread* that called this ends (`PR_SET_PDEATHSIG` is per
    /// thread), so call it from a thread that lives as long as the child should.
    ///
    /// # Errors
    /// [`SpawnError`]; no process is left behind.
    pub fn spawn(&self) -> Result<Child, SpawnError> {
        self.try_spawn().map_err(|(step, source)| SpawnError {
            program: self.program.to_string_lossy().into_owned(),
            step,
            source,
        })
    }

    fn try_spawn(&self) -> Result<Child, (SpawnStep, io::Error)> {
        let prepare = |error: io::Error| (SpawnStep::Fork, error);
        assert!((3..=MAX_FDS).contains(&self.fds.len()), "3 to 64 descriptors");
        let top = RawFd::try_from(self.fds.len() - 1).unwrap_or(RawFd::MAX);
        let by_name = !self.program.as_bytes().contains(&b'/');
        let paths = self
            .resolve()
            .map_err(|error| (if by_name { SpawnStep::Path } else { SpawnStep::Exec }, error))?;
        let argv = strings(std::iter::once(self.program.to_owned()).chain(self.args.iter().cloned()))
            .map_err(prepare)?;
        let envp = strings(self.env.iter().map(|(key, value)| {
            let mut both = key.clone();
            both.push("=");
            both.push(value);
            both
        }))
        .map_err(prepare)?;
        let dir = self.dir.map(|dir| CString::new(dir.as_os_str().as_bytes())).transpose();
        let dir = dir.map_err(|error| prepare(error.into()))?;
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| prepare(error.into()))?;
        // Above all targets, which the child puts into place one by one.
        let writer = move_above(writer, top).map_err(prepare)?;
        let setup = PreparedSetup::new(self.setup);
        let mut sources = [-1; MAX_FDS];
        for (source, fd) in sources.iter_mut().zip(self.fds) {
            *source = fd.as_raw_fd();
        }
        let plan = SpawnPlan {
            paths: &pointers(&paths)[..paths.len()],
            argv: &pointers(&argv),
            envp: &pointers(&envp),
            dir: dir.as_ref(),
            sources: &sources[..self.fds.len()],
            count: top + 1,
            setup: &setup,
            writer: writer.as_raw_fd(),
            outlive: self.outlive,
            parent: rustix::process::getpid(),
        };
        let pid = plan.start().map_err(prepare)?;
        drop(writer);
        let mut report = [0_u8; 5];
        let got = read_all(&reader, &mut report).map_err(prepare)?;
        if got == report.len() {
            // The child is about to _exit; collect it so that no zombie stays.
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).ok();
            let errno = i32::from_le_bytes([report[1], report[2], report[3], report[4]]);
            return Err((step_of(report[0]), io::Error::from_raw_os_error(errno)));
        }
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok();
        Ok(Child { pid, pidfd })
    }

    /// The files to exec, of which the first is taken that the child's user may execute: as given, or the
    /// hits in `PATH`.
    fn resolve(&self) -> io::Result<Vec<CString>> {
        let program = Path::new(self.program);
        let found: Vec<PathBuf> = if self.program.as_bytes().contains(&b'/') {
            vec![program.to_owned()]
        } else {
            let path = self.env.iter().find(|(key, _)| key == "PATH");
            let path =
                path.map_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"), |(_, v)| v.clone());
            std::env::split_paths(&path).map(|dir| dir.join(program)).filter(is_executable).collect()
        };
        if found.is_empty() {
            // With a number, as exec would say it.
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        found.into_iter().map(|path| Ok(CString::new(path.into_os_string().into_vec())?)).collect()
    }
}

/// Everything the child touches between fork and exec, borrowed from the parent's memory.
struct SpawnPlan<'a> {
    /// At least one.
    paths: &'a [*const libc::c_char],
    argv: &'a [*const libc::c_char],
    envp: &'a [*const libc::c_char],
    dir: Option<&'a CString>,
    sources: &'a [RawFd],
    /// Number of sources, as a descriptor.
    count: RawFd,
    setup: &'a PreparedSetup,
    writer: RawFd,
    outlive: bool,
    parent: Pid,
}

impl SpawnPlan<'_> {
    /// Starts the child on a stack of its own, in the parent's memory; the calling thread waits until it has
    /// exec'ed or ended. Nothing of the parent's memory is copied, however much it has, and no
    /// `pthread_atfork` handler runs.
    fn start(&self) -> io::Result<Pid> {
        let stack = ChildStack::new()?;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let plan: *const SpawnPlan<'_> = self;
        // No handler of the program may run in the child, which shares its memory: it resets them before it
        // lets signals through.
        let mask = SignalBlock::new();
        // SAFETY: the stack is this call's own and the child's alone while it lives. The child calls
        // `SpawnPlan::run` only, which makes system calls, writes to that stack and never returns.
        // `CLONE_VFORK` keeps this thread, and with it all that the plan borrows, where it is until the child
        // has exec'ed or ended.
        let pid = unsafe { libc::clone(run_plan, stack.top(), flags, plan.cast_mut().cast()) };
        let error = io::Error::last_os_error();
        drop(mask);
        if pid == -1 {
            return Err(error);
        }
        Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Runs in the child. System calls only.
    fn run(&self) -> ! {
        let (step, errno) = match self.prepare() {
            Ok(()) => {
                let mut errno = libc::ENOENT;
                for path in self.paths {
                    // SAFETY: path, argv and envp are NUL-terminated and null-terminated, made before the
                    // fork.
                    unsafe { libc::execve(*path, self.argv.as_ptr(), self.envp.as_ptr()) };
                    errno = last_errno();
                    // As execvp: one of another directory may be for this user.
                    if errno != libc::EACCES {
                        break;
                    }
                }
                (SpawnStep::Exec, errno)
            }
            Err(failed) => failed,
        };
        let code = errno.to_le_bytes();
        let report = [step as u8, code[0], code[1], code[2], code[3]];
        // SAFETY: writes five bytes of this stack to the error pipe.
        unsafe { libc::write(self.writer, report.as_ptr().cast(), report.len()) };
        // SAFETY: ends the child without running destructors of the parent's copy.
        unsafe { libc::_exit(127) }
    }

    fn prepare(&self) -> Result<(), (SpawnStep, i32)> {
        let failed = |step| move |errno: rustix::io::Errno| (step, errno.raw_os_error());
        let here = failed(SpawnStep::Descriptors);
        rustix::process::setpgid(None, None).map_err(here)?;
        self.die_with_parent()?;
        let count = self.count;
        let mut moved = [-1; MAX_FDS];
        for (copy, source) in moved.iter_mut().zip(self.sources) {
            // First above all targets, then into place: sources and targets overlap.
            *copy = *source;
            if *source < count {
                // SAFETY: duplicates a number that is open in the parent and so here.
                *copy = unsafe { libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, count) };
            }
            if *copy == -1 {
                return Err((SpawnStep::Descriptors, beyond_limit(last_errno())));
            }
        }
        for (target, copy) in (0..count).zip(moved) {
            // SAFETY: the child's own copy of the table; nothing else runs here. dup2 clears close-on-exec.
            if unsafe { libc::dup2(copy, target) } == -1 {
                return Err((SpawnStep::Descriptors, beyond_limit(last_errno())));
            }
        }
        // Marked rather than closed, so that the error pipe lives until exec.
        close_range(count.unsigned_abs(), u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        reset_signals();
        self.setup.apply().map_err(failed(SpawnStep::Setup))?;
        if let Some(dir) = self.dir {
            rustix::process::chdir(dir.as_c_str()).map_err(failed(SpawnStep::Directory))?;
        }
        // A change of user clears the death signal.
        self.die_with_parent()
    }

    fn die_with_parent(&self) -> Result<(), (SpawnStep, i32)> {
        if self.outlive {
            return Ok(());
        }
        let kill = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(kill)
            .map_err(|errno| (SpawnStep::Descriptors, errno.raw_os_error()))?;
        // The parent may have died between fork and prctl; then no signal will come.
        if rustix::process::getppid() == Some(self.parent) {
            return Ok(());
        }
        Err((SpawnStep::Descriptors, libc::ESRCH))
    }
}

/// Where `clone` lets the child begin.
extern "C" fn run_plan(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `SpawnPlan::start` passes its own plan, which lives until this process has exec'ed or ended.
    let plan = unsafe { &*plan.cast::<SpawnPlan<'_>>() };
    plan.run()
}

/// Memory for the child's calls before its exec.
struct ChildStack {
    start: *mut libc::c_void,
}

impl ChildStack {
    fn new() -> io::Result<Self> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
        // By libc, whose calls AddressSanitizer sees: frames that the last child left there would else stay
        // poisoned. SAFETY: a fresh mapping at an address the kernel picks; no existing memory is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), STACK + GUARD, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { start };
        // SAFETY: the lowest page of the mapping just made: a stack that grows too far faults there.
        if unsafe { libc::mprotect(start, GUARD, libc::PROT_NONE) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// Stacks grow down from here.
    fn top(&self) -> *mut libc::c_void {
        self.start.wrapping_byte_add(STACK + GUARD)
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and the child that used it has exec'ed or ended.
        unsafe { libc::munmap(self.start, STACK + GUARD) };
    }
}

/// All signals blocked for this thread; as before when dropped.
struct SignalBlock {
    before: libc::sigset_t,
}

impl SignalBlock {
    fn new() -> Self {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sigfillset initialises the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the first set is initialised, the second one writable.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: written by pthread_sigmask, and all-zero is a valid set.
        Self { before: unsafe { before.assume_init() } }
    }
}

impl Drop for SignalBlock {
    fn drop(&mut self) {
        // SAFETY: an initialised set; no old one is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Empty mask, no handlers (they are the parent's code, in the parent's memory), and SIGPIPE as programs
/// expect it (Rust ignores it).
fn reset_signals() {
    for signal in 1..=SIGNALS {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only reads the action, into writable memory; an invalid number gives EINVAL and leaves it
        // zero.
        unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: zeroed at the start, which is a valid sigaction.
        let mut action = unsafe { action.assume_init() };
        if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN {
            action.sa_sigaction = libc::SIG_DFL;
            // SAFETY: an initialised action with a valid disposition; the child has its own table of them.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that sigprocmask then reads.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised above; no old mask is asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) };
    // SAFETY: SIG_DFL is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// A number at or above the limit of descriptors is EINVAL to `fcntl` and EBADF to `dup2`: both mean EMFILE.
fn beyond_limit(errno: i32) -> i32 {
    if errno == libc::EINVAL || errno == libc::EBADF { libc::EMFILE } else { errno }
}

fn last_errno() -> i32 {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() }
}

fn step_of(byte: u8) -> SpawnStep {
    [SpawnStep::Fork, SpawnStep::Descriptors, SpawnStep::Setup, SpawnStep::Directory]
        .into_iter()
        .find(|step| *step as u8 == byte)
        .unwrap_or(SpawnStep::Exec)
}

fn is_executable(file: &PathBuf) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

fn strings(all: impl Iterator<Item = OsString>) -> io::Result<Vec<CString>> {
    all.map(|one| CString::new(one.as_bytes()).map_err(io::Error::from)).collect()
}

/// The null-terminated array `execve` wants; borrows from `all`.
fn pointers(all: &[CString]) -> Vec<*const libc::c_char> {
    all.iter().map(|one| one.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
}

fn read_all(from: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match rustix::io::read(from, &mut into[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}

/// The child's stack, bytes; it needs a few KiB.
const STACK: usize = 64 << 10;

/// Below it, a page that cannot be touched.
const GUARD: usize = 4096;

/// The highest signal number.
const SIGNALS: i32 = 64;

/// Most descriptors a child can be given.
const MAX_FDS: usize = 64;

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    /// A program with an empty environment.
    fn plain<'a>(
        program: &'a str,
        args: &'a [OsString],
        fds: &'a [BorrowedFd<'a>],
        setup: &'a Setup,
    ) -> Spawn<'a> {
        Spawn { program: OsStr::new(program), args, env: &[], dir: None, fds, setup, outlive: false }
    }

    #[expect(clippy::unwrap_used, reason = "a helper of tests")]
    fn run(script: &str, extra: &[BorrowedFd<'_>], setup: &Setup) -> Result<String, SpawnError> {
        let null = File::open("/dev/null").unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut fds = vec![null.as_fd(), writer.as_fd(), writer.as_fd()];
        fds.extend_from_slice(extra);
        let args = ["-c".into(), script.into()];
        let spawn = plain("sh", &args, &fds, setup);
        let child = spawn.spawn()?;
        drop(writer);
        let mut said = String::new();
        File::from(reader).read_to_string(&mut said).unwrap();
        waitpid(Some(child.pid), WaitOptions::empty()).unwrap();
        Ok(said)
    }

    #[test]
    fn the_child_sees_exactly_what_it_was_given() {
        let more = File::open("/dev/zero").unwrap();
        let said = run("ls /proc/$$/fd; :", &[more.as_fd()], &Setup::default()).unwrap();
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    }

    #[test]
    fn the_child_leads_its_own_group() {
        let said = run("cut -d' ' -f1,5 /proc/$$/stat", &[], &Setup::default()).unwrap();
        let (pid, group) = said.trim().split_once(' ').unwrap();
        assert_eq!(pid, group);
    }

    #[test]
    fn a_large_parent_starts_programs_as_fast_as_a_small_one() {
        let null = File::open("/dev/null").unwrap();
        let fds = [null.as_fd(), null.as_fd(), null.as_fd()];
        let setup = Setup::default();
        let spawn = plain("/bin/true", &[], &fds, &setup);
        // The shortest of many, which other work on the machine disturbs least.
        let fastest = || {
            let one = || {
                let start = crate::link::now();
                let child = spawn.spawn().unwrap();
                let took = start.elapsed();
                waitpid(Some(child.pid), WaitOptions::empty()).unwrap();
                took
            };
            (0..20).map(|_| one()).min().unwrap()
        };
        let small = fastest();
        // 1 GiB of pages, each written to: a fork copies their table, a quarter of a million entries.
        let mut memory = vec![0_u8; 1 << 30];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let most = small * 3 + std::time::Duration::from_millis(1);
        let mut large = fastest();
        // Other work may have begun since the first measurement.
        for _ in 0..50 {
            if large < most {
                break;
            }
            large = large.min(fastest());
        }
        assert!(memory.iter().step_by(4096).all(|byte| *byte == 1));
        assert!(large < most, "{small:?}, with 1 GiB {large:?}");
    }

    #[test]
    fn the_child_begins_without_handlers_and_blocks_nothing() {
        let mask = |status: &str, name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let said = run("exec cat /proc/self/status", &[], &Setup::default()).unwrap();
        // Rust has a handler of SIGSEGV, and ignores SIGPIPE.
        assert_ne!(mask(&own, "SigCgt:"), 0);
        assert_eq!((mask(&said, "SigBlk:"), mask(&said, "SigCgt:")), (0, 0));
        assert_eq!(mask(&said, "SigIgn:"), mask(&own, "SigIgn:") & !(1 << (libc::SIGPIPE - 1)));
        let again = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(mask(&again, "SigCgt:"), mask(&own, "SigCgt:"), "the parent keeps its own");
    }

    #[test]
    fn a_missing_program_is_an_error_with_its_errno() {
        let null = File::open("/dev/null").unwrap();
        let fds = [null.as_fd(), null.as_fd(), null.as_fd()];
        let setup = Setup::default();
        for (program, kind) in
            [("/no/such/program", io::ErrorKind::NotFound), ("/etc/passwd", io::ErrorKind::PermissionDenied)]
        {
            let spawn = plain(program, &[], &fds, &setup);
            let error = spawn.spawn().unwrap_err();
            assert_eq!((error.step, error.source.kind()), (SpawnStep::Exec, kind), "{program}");
        }
    }
}
