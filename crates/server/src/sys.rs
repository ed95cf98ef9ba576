//! Calls of the operating system for the start of the server: background, limits, user, files.
//!
//! This module and `ring.rs` have the server's unsafe code: fork, signal handlers, mappings and the
//! allocator's settings have no safe interface, and neither has a descriptor that was passed at the start.

#![expect(
    unsafe_code,
    reason = "fork and sigaction are safe only in a process with one thread; a mapping is tried; options of the allocator"
)]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cattlegrid_config::Privileges;
use nix::errno::Errno as Reason;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{self, ForkResult, Gid, Uid, User};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chownat, fstat, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MlockAllFlags, ProtFlags, mlockall, mmap_anonymous, munmap};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, WaitOptions, chdir, getpid, getrlimit, set_dumpable_behavior,
    setrlimit, setsid, test_kill_process, umask, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread as caps;

use crate::log;

/// The address space that must stay free, in bytes. It is more than all lanes can take in a millisecond: a
/// turn takes at most about 100 KiB, and a lane has about 30 such turns in a millisecond.
pub(crate) const HEADROOM_BYTES: usize = 16 << 20;

/// The system refused a request; the message says what would help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SysError(String);

impl SysError {
    fn new(what: impl std::fmt::Display, error: impl Into<io::Error>) -> Self {
        Self(format!("{what}: {}", reason(&error.into())))
    }
}

/// The text of an error, without the number that the standard library adds.
pub fn reason(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |code| Reason::from_raw(code).desc().to_owned())
}

/// Sets the action of a signal, which must be "ignore" or "default".
pub(crate) fn set_handler(number: Signal, handler: SigHandler) -> io::Result<()> {
    assert!(!matches!(handler, SigHandler::Handler(_) | SigHandler::SigAction(_)), "no code in handlers");
    // SAFETY: only "ignore" and "default" are installed (asserted above), so no handler's code ever runs.
    unsafe { signal(number, handler) }?;
    Ok(())
}

// ---- background -------------------------------------------------------------------------------------------

/// The daemon's pipe to the command that started it, which reports that the daemon listens.
#[derive(Debug)]
pub struct ReadyPipe {
    pipe: io::PipeWriter,
    quiet: bool,
}

/// Continues in the background: in a session of its own without a terminal, which the process does not lead.
///
/// Must be called while the process has one thread. The calling process exits inside: with status 0 once
/// the daemon calls [`ReadyPipe::report`], with 1 if the daemon ends before that. Until then errors still
/// reach the terminal. `stay`: do not change to `/`. `quiet`: [`ReadyPipe::report`] connects standard input,
/// output and error to `/dev/null`.
///
/// # Errors
/// The system refuses a fork, a session, a pipe or the change of directory.
pub fn daemonise(stay: bool, quiet: bool) -> Result<ReadyPipe, SysError> {
    let failed = |error: io::Error| SysError::new("-d: cannot go to the background", error);
    let failed_call = |errno: Errno| failed(errno.into());
    let (mut reader, pipe) = io::pipe().map_err(failed)?;
    if let Some(child) = fork().map_err(failed)? {
        drop(pipe);
        let listening = reader.read(&mut [0]).is_ok_and(|bytes| bytes == 1);
        // The first child ends at once, and no other process would collect it.
        waitpid(Some(child), WaitOptions::empty()).map_err(failed_call)?;
        std::process::exit(i32::from(!listening));
    }
    drop(reader);
    setsid().map_err(failed_call)?;
    // The second fork: a process that does not lead its session cannot get a terminal by opening one.
    if fork().map_err(failed)?.is_some() {
        std::process::exit(0);
    }
    if !stay {
        chdir("/").map_err(failed_call)?;
    }
    Ok(ReadyPipe { pipe, quiet })
}

impl ReadyPipe {
    /// Lets the command that started the daemon return.
    ///
    /// # Errors
    /// Standard input, output and error cannot be connected to `/dev/null`.
    pub fn report(mut self) -> Result<(), SysError> {
        let failed =
            |error: io::Error| SysError(format!("-d: cannot leave the terminal: {}", reason(&error)));
        if self.quiet {
            let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
            dup2_stdin(&null)
                .and_then(|()| dup2_stdout(&null))
                .and_then(|()| dup2_stderr(&null))
                .map_err(|errno| failed(errno.into()))?;
        }
        // An error is ignored: if the command that started the daemon was killed, the daemon serves all the
        // same.
        self.pipe.write_all(b"!").unwrap_or_default();
        Ok(())
    }
}

/// Forks: the child's id in the parent, None in the child.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the callers of `daemonise` and `stay_as_first_process` keep to one thread, so the child has
    // every lock free and may go on.
    match unsafe { unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Pid::from_raw(child.as_raw())),
        ForkResult::Child => Ok(None),
    }
}

/// Takes a descriptor with which this process was started. To be called once for each number, before other
/// code uses it.
///
/// # Errors
/// The descriptor is not open.
pub(crate) fn passed_descriptor(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: only borrowed, to find out whether it is open; a closed one is an error of the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and the program that has started this process has handed it over; no code here has
    // it yet.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

// ---- limits -----------------------------------------------------------------------------------------------

/// A limit with this value is no limit.
const UNLIMITED: u64 = u64::MAX;

/// The soft and the hard limit.
fn limits(resource: Resource) -> (u64, u64) {
    let Rlimit { current, maximum } = getrlimit(resource);
    (current.unwrap_or(UNLIMITED), maximum.unwrap_or(UNLIMITED))
}

fn set_limits(resource: Resource, soft: u64, hard: u64) -> Result<(), Errno> {
    let given = |limit| Some(limit).filter(|limit| *limit != UNLIMITED);
    setrlimit(resource, Rlimit { current: given(soft), maximum: given(hard) })
}

/// Descriptors other than connections: listeners, pollers, pipes, files.
const OWN_DESCRIPTORS: u64 = 64;

/// Open files for `connections`, for the descriptors of `threads`, and for `others`.
pub(crate) fn open_files(connections: usize, threads: usize, others: usize) -> u64 {
    connections as u64 + OWN_DESCRIPTORS + 4 * threads as u64 + others as u64
}

/// Raises the limit on open files so that it fits `connections`, the descriptors of `threads`, and `others`
/// (rings, pools of loaders).
///
/// If only the connections themselves fit, warns and takes the available limit, as memcached would.
///
/// # Errors
/// The connections do not fit.
pub fn raise_open_files(connections: usize, threads: usize, others: usize) -> Result<(), SysError> {
    let failed = |errno: Errno| {
        SysError::new(
            format_args!(
                "-c {connections}: failed to set rlimit for open files; start as root, raise `ulimit -n`, or \
                 ask for fewer connections"
            ),
            errno,
        )
    };
    let (soft, hard) = limits(Resource::Nofile);
    let least = connections as u64;
    let wanted = open_files(connections, threads, others);
    if soft >= wanted {
        return Ok(());
    }
    match set_limits(Resource::Nofile, wanted, hard.max(wanted)) {
        Ok(()) => Ok(()),
        Err(_) if hard >= least => {
            log::warning(format_args!(
                "-c {connections}: {wanted} open files would fit that, {hard} are allowed; the last \
                 connections will be refused"
            ));
            set_limits(Resource::Nofile, hard, hard).map_err(failed)
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// `-r`: raises the limit on core files as far as allowed.
///
/// # Errors
/// The system refuses.
pub fn raise_core_limit() -> Result<(), SysError> {
    if set_limits(Resource::Core, UNLIMITED, UNLIMITED).is_ok() {
        return Ok(());
    }
    let (_, hard) = limits(Resource::Core);
    if hard == 0 {
        return Err(SysError(
            "-r: core files are forbidden here; raise `ulimit -Hc` or leave -r out".to_owned(),
        ));
    }
    set_limits(Resource::Core, hard, hard)
        .map_err(|errno| SysError::new("-r: failed to ensure corefile creation", errno))
}

/// `-k`, while still root: raises the limit on locked memory as far as allowed, so that memory which is
/// mapped later, as another user, can be locked too.
pub fn raise_locked_memory() {
    if set_limits(Resource::Memlock, UNLIMITED, UNLIMITED).is_err() {
        let (_, hard) = limits(Resource::Memlock);
        if let Err(errno) = set_limits(Resource::Memlock, hard, hard) {
            log::warning(format_args!(
                "-k: cannot raise the limit on locked memory: {}",
                reason(&errno.into())
            ));
        }
    }
}

/// `-k`: keeps memory from being paged out, each page from its first use on; only warns if that is forbidden.
/// To touch all pages at once would take seconds for each 10 GiB, in which no request is answered, for memory
/// that may never be used.
pub fn lock_memory() {
    if let Err(errno) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
        log::warning(format_args!(
            "-k invalid, mlockall() failed: {}; raise `ulimit -l`",
            io::Error::from(errno)
        ));
    }
}

// ---- memory -----------------------------------------------------------------------------------------------

/// Address space of a thread: its stack, and the buffers of a lane; in bytes.
const THREAD_BYTES: usize = 3 << 20;
/// Address space besides items and threads, in bytes: tables, connections, and twice the room that is kept
/// free.
const OWN_BYTES: usize = 16 << 20;

/// A block of at least this many bytes is a mapping of its own.
const LARGE_BLOCK: i32 = 4 << 20;

// Options of `mallopt`, which other C libraries lack.
const M_TRIM_THRESHOLD: i32 = -1;
const M_MMAP_THRESHOLD: i32 = -3;
const M_ARENA_MAX: i32 = -8;

/// Whether the system may refuse memory although the machine has some: under a limit on address space, or
/// strict accounting.
pub(crate) fn memory_may_be_refused() -> bool {
    let limited = limits(Resource::As).0 != UNLIMITED;
    limited || std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.starts_with(b"2"))
}

/// Whether the system would map this many bytes now. The mapping is removed again, without touching a page.
pub(crate) fn could_map(bytes: usize) -> bool {
    if bytes == 0 {
        return true;
    }
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let Ok(base) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }) else {
        return false;
    };
    // SAFETY: the mapping made above, whole; nothing refers to it.
    unsafe { munmap(base, bytes) }.is_ok()
}

/// Free bytes inside the allocator, which it can use for new blocks, but seldom return to the system.
#[cfg(target_env = "gnu")]
pub(crate) fn free_heap_bytes() -> usize {
    // SAFETY: reads the allocator's accounts, under its locks.
    unsafe { nix::libc::mallinfo2() }.fordblks
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn free_heap_bytes() -> usize {
    0
}

/// Has the allocator return its free memory to the system, in whole pages.
#[cfg(target_env = "gnu")]
pub(crate) fn return_free_heap() {
    // SAFETY: gives back pages that no allocation is in, under the allocator's locks.
    let _any = unsafe { nix::libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn return_free_heap() {}

/// Whether the free ends of threads' heaps are kept, up to some MiB, or returned when their thread frees
/// memory.
pub(crate) fn keep_heap_ends(keep: bool) {
    set_allocator(&[(M_TRIM_THRESHOLD, if keep { 2 * LARGE_BLOCK } else { 128 << 10 })]);
}

/// Returns the end of this thread's heap, unless ends are kept: the allocator checks it when a large block is
/// freed.
pub(crate) fn return_own_heap() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(256 << 10)));
}

/// Under a limit on address space: checks that items, threads and the room that is kept free fit into it, and
/// keeps the allocator from reserving 64 MiB for each thread. Must be called before threads start.
/// `memory_bytes`: the memory for items.
///
/// # Errors
/// They do not fit; the message has the necessary limit.
pub fn fit_address_space(memory_bytes: usize, threads: usize) -> Result<(), SysError> {
    let (limit, _) = limits(Resource::As);
    if limit == UNLIMITED {
        return Ok(());
    }
    one_arena();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mapped = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")?.parse().ok());
    let mapped = mapped.unwrap_or(0_usize) << 10;
    // The thread of the log is one more.
    let needed = mapped
        .saturating_add(memory_bytes)
        .saturating_add((threads + 1).saturating_mul(THREAD_BYTES))
        .saturating_add(OWN_BYTES + 2 * HEADROOM_BYTES);
    if needed as u64 <= limit {
        return Ok(());
    }
    Err(SysError(format!(
        "-m {} with -t {threads} needs {} KiB of address space, {} are allowed; raise `ulimit -v`, or lower -m or -t",
        memory_bytes >> 20,
        needed.div_ceil(1024),
        limit / 1024,
    )))
}

fn one_arena() {
    set_allocator(&[(M_ARENA_MAX, 1)]);
}

/// Has the allocator return large blocks to the system when they are freed, such as those of values that are
/// received without pages. Otherwise the allocator would learn to keep blocks of up to 32 MiB, twice for each
/// thread. Must be called before threads start.
pub fn return_large_blocks() {
    set_allocator(&[(M_MMAP_THRESHOLD, LARGE_BLOCK), (M_TRIM_THRESHOLD, 2 * LARGE_BLOCK)]);
}

#[cfg(target_env = "gnu")]
fn set_allocator(options: &[(i32, i32)]) {
    for (option, value) in options {
        // SAFETY: sets a number of the allocator, a word that other threads only read; a refusal changes
        // nothing.
        let _set = unsafe { nix::libc::mallopt(*option, *value) };
    }
}

#[cfg(not(target_env = "gnu"))]
fn set_allocator(_options: &[(i32, i32)]) {}

// ---- identity ---------------------------------------------------------------------------------------------

/// The user as whom the server runs.
#[derive(Debug, Clone)]
pub struct Account {
    name: CString,
    uid: Uid,
    gid: Gid,
}

/// The user of `-u`; None if the process is not root, where memcached, too, ignores the option. Warns if the
/// server will run as root.
///
/// # Errors
/// There is no such user.
pub fn account(user: Option<&str>) -> Result<Option<Account>, SysError> {
    if !Uid::current().is_root() && !Uid::effective().is_root() {
        if let Some(name) = user {
            log::info(format_args!("-u {name}: ignored, only root can become another user"));
        }
        return Ok(None);
    }
    let Some(name) = user else {
        log::warning("running as root; -u <user> names a user to become");
        return Ok(None);
    };
    let missing = || SysError(format!("-u {name}: can't find the user {name} to switch to"));
    let user = User::from_name(name).ok().flatten().ok_or_else(missing)?;
    let name = CString::new(user.name).map_err(|_| missing())?;
    Ok(Some(Account { name, uid: user.uid, gid: user.gid }))
}

impl Account {
    /// Changes to the user for good: supplementary groups, group, user, in the order that leaves no way back.
    ///
    /// `dumpable`: allows core files again, which the system forbids to a process that changes its user.
    ///
    /// # Errors
    /// The system refuses.
    pub fn assume(&self, dumpable: bool) -> Result<(), SysError> {
        let name = self.name.to_string_lossy();
        let failed = |errno: Reason| {
            SysError::new(format_args!("-u {name}: failed to assume identity of user {name}"), errno)
        };
        unistd::initgroups(&self.name, self.gid).map_err(failed)?;
        unistd::setgid(self.gid).map_err(failed)?;
        unistd::setuid(self.uid).map_err(failed)?;
        if dumpable {
            set_dumpable_behavior(DumpableBehavior::Dumpable)
                .map_err(|errno| SysError::new("-r: core files cannot be allowed again after -u", errno))?;
        }
        Ok(())
    }

    /// Gives the Unix socket at `path`, which root has made, to this user.
    ///
    /// # Errors
    /// The system refuses, or the file is not a socket: others may be able to write in the directory, and the
    /// owner of another file must not change.
    pub fn own_socket(&self, path: &Path) -> io::Result<()> {
        give_socket(path, Some(self.uid), self.gid)
    }
}

/// Gives the Unix socket of a server that is not root to the group of `user`, the one of `-u`, if the
/// server's user is in that group. Members of the group can connect then, as to a server that root has
/// started.
///
/// # Errors
/// The same as of [`Account::own_socket`].
pub fn share_socket(path: &Path, user: &str) -> io::Result<()> {
    let group = User::from_name(user).ok().flatten().map(|user| user.gid);
    let is_member = |group: &Gid| unistd::getgroups().is_ok_and(|groups| groups.contains(group));
    group.filter(is_member).map_or(Ok(()), |group| give_socket(path, None, group))
}

fn give_socket(path: &Path, uid: Option<Uid>, gid: Gid) -> io::Result<()> {
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&file)?;
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket && found.st_nlink == 1;
    if !is_ours {
        return Err(io::Error::other("the socket was replaced by another file"));
    }
    let uid = uid.map(|uid| rustix::fs::Uid::from_raw(uid.as_raw()));
    Ok(chownat(&file, c"", uid, Some(rustix::fs::Gid::from_raw(gid.as_raw())), AtFlags::EMPTY_PATH)?)
}

/// `-o drop_privileges`: gives up privileges of this thread and of threads that it starts.
///
/// # Errors
/// The system refuses.
pub fn drop_privileges(privileges: Privileges) -> Result<(), SysError> {
    let failed = |errno: Errno| SysError::new("-o drop_privileges: cannot give up privileges", errno);
    if privileges == Privileges::Keep {
        return Ok(());
    }
    if privileges == Privileges::Drop {
        for capability in caps::CapabilitySet::all().iter() {
            match caps::remove_capability_from_bounding_set(capability) {
                // PERM: the process is not root any more, and cannot gain anything through the bounding set.
                // INVAL: this kernel does not know the capability.
                Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        caps::clear_ambient_capability_set().map_err(failed)?;
        let none = caps::CapabilitySet::empty();
        let sets = caps::CapabilitySets { effective: none, permitted: none, inheritable: none };
        caps::set_capabilities(None, sets).map_err(failed)?;
    }
    caps::set_no_new_privs(true).map_err(failed)
}

// ---- files ------------------------------------------------------------------------------------------------

/// Runs `make` while new files get at most the access bits `bits`.
///
/// The mask belongs to the whole process: must be called before threads start.
pub fn with_access_bits<T>(bits: u32, make: impl FnOnce() -> T) -> T {
    let old = umask(Mode::from_raw_mode(!bits & 0o777));
    let result = make();
    umask(old);
    result
}

/// The file of `-P`, which is removed when this is dropped if it still names this process.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// Writes the id of this process, completely or not at all. Must be called as the final user, who can
    /// remove a file that it can write.
    ///
    /// As in memcached, a file that names a running process and a file that cannot be written cause a
    /// warning, and the server runs.
    /// warning, and the server runs.
    pub fn write(path: &Path) -> Option<Self> {
        if let Some(pid) = pid_in(path).filter(|pid| *pid != getpid()) {
            // PERM means that the process runs, as another user.
            if matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)) {
                log::warning(format_args!(
                    "-P: the pid file contained the following (running) pid: {}",
                    pid.as_raw_nonzero()
                ));
            }
        }
        match replace_file(path, &format!("{}\n", std::process::id())) {
            Ok(()) => Some(Self { path: path.to_owned() }),
            Err(error) => {
                log::warning(format_args!(
                    "-P: could not write the pid file {}: {}",
                    path.display(),
                    reason(&error)
                ));
                None
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A server that was started later may have replaced the file.
        if pid_in(&self.path) == Some(getpid())
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            log::warning(format_args!(
                "-P: could not remove the pid file {}: {}",
                self.path.display(),
                reason(&error)
            ));
        }
    }
}

/// The process id in a regular file. Other files are not read, since opening a pipe waits, and a link may
/// lead anywhere.
fn pid_in(path: &Path) -> Option<Pid> {
    let file = File::options()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(PID_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
}

/// The most bytes of a pid file that are read.
const PID_BYTES_MAX: u64 = 64;

/// Writes a temporary file, `path` with `.tmp` appended, and renames it, so that readers see the whole text
/// or the old file.
///
/// Others may be able to write in the directory. A file under the temporary name is removed. A file that
/// another user creates there in between is neither followed nor used, and the write fails. A link under the
/// final name is replaced, not followed.
///
/// # Errors
/// The file cannot be written or renamed.
pub fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&beside)?;
    file.write_all(text.as_bytes())
        .and_then(|()| std::fs::rename(&beside, path))
        .inspect_err(|_| std::fs::remove_file(&beside).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::fs::{CWD, mknodat};

    use super::*;

    #[test]
    fn a_pid_file_lives_as_long_as_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        std::fs::write(&path, "1\n").unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(file);
        assert!(!path.exists());
        assert!(PidFile::write(&dir.path().join("no/such/dir")).is_none());
    }

    /// A link that was planted under the final or the temporary name is not followed, and what it names is
    /// not touched.
    #[test]
    fn planted_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, beside, victim] = ["pid", "pid.tmp", "victim"].map(|name| dir.path().join(name));
        std::fs::write(&victim, "precious").unwrap();
        for planted in [&path, &beside] {
            std::os::unix::fs::symlink(&victim, planted).unwrap();
        }
        let file = PidFile::write(&path).unwrap();
        assert!(path.symlink_metadata().unwrap().is_file() && !beside.exists());
        drop(file);
        std::fs::hard_link(&victim, &beside).unwrap();
        replace_file(&path, "ports").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ports");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        std::fs::create_dir(&beside).unwrap();
        assert!(replace_file(&path, "more").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ports", "what was there stays");
    }

    /// Opening a pipe for reading would wait for a writer.
    #[test]
    fn a_pid_is_read_from_regular_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(pid_in(&path), None);
        let file = PidFile::write(&path).unwrap();
        assert_eq!(pid_in(&path), Some(getpid()));
        drop(file);
        std::fs::write(&path, "1".repeat(1000)).unwrap();
        assert_eq!(pid_in(&path), None);
    }

    #[test]
    fn only_a_socket_changes_its_owner() {
        if !Uid::effective().is_root() {
            return;
        }
        let account = account(Some("nobody")).unwrap().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let [socket, file, link] = ["socket", "file", "link"].map(|name| dir.path().join(name));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        account.own_socket(&socket).unwrap();
        assert_eq!(std::fs::metadata(&socket).unwrap().uid(), account.uid.as_raw());
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(account.own_socket(&file).is_err() && account.own_socket(&link).is_err());
        assert_eq!(std::fs::metadata(&file).unwrap().uid(), 0);
    }

    #[test]
    fn a_pid_file_taken_over_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        std::fs::write(&path, "1\n").unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn limits_that_fit_and_that_cannot() {
        raise_open_files(1, 1, 0).unwrap();
        let error = raise_open_files(i32::MAX as usize, 4, 0).unwrap_err().to_string();
        assert!(error.contains("failed to set rlimit for open files"), "{error}");
    }

    #[test]
    fn memory_that_could_be_had_and_that_could_not() {
        assert!(could_map(0) && could_map(1 << 20));
        assert!(!could_map(1 << 55));
    }

    #[test]
    fn users_are_known_or_named_in_the_error() {
        if !Uid::effective().is_root() {
            assert!(account(Some("no-such-user")).unwrap().is_none());
            return;
        }
        let error = account(Some("no-such-user")).unwrap_err().to_string();
        assert_eq!(error, "-u no-such-user: can't find the user no-such-user to switch to");
        assert_eq!(account(Some("root")).unwrap().unwrap().uid, Uid::from_raw(0));
        assert!(account(None).unwrap().is_none());
    }

    /// Capabilities belong to the thread, and this one ends here.
    #[test]
    fn privileges_once_given_up_are_gone() {
        std::thread::spawn(|| {
            drop_privileges(Privileges::Keep).unwrap();
            let before = caps::capabilities(None).unwrap().permitted;
            drop_privileges(Privileges::NoNew).unwrap();
            assert!(caps::no_new_privs().unwrap());
            assert_eq!(caps::capabilities(None).unwrap().permitted, before);
            drop_privileges(Privileges::Drop).unwrap();
            assert!(caps::capabilities(None).unwrap().permitted.is_empty());
            drop_privileges(Privileges::Drop).unwrap();
        })
        .join()
        .unwrap();
    }
}
