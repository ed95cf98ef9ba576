//! The running server: its addresses, its process and its statistics.
//!
//! # Invariants
//! * All addresses are asked at the same time, so that silent ones cost [`ALL`] once.
//! * A process named in an answer counts only if it is seen to be this server: it may be in another pid
//!   namespace.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use cattlegrid_config::Settings;
use cattlegrid_server::time;

use super::finding::Findings;
use super::machine::{self, SystemFiles};
use super::network;
use super::running::{self, RunningStats};
use crate::running::{ask, is_silence};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for all answers.
const ALL: Duration = Duration::from_millis(2500);

/// The running server.
#[derive(Debug)]
pub(crate) struct RunningServer {
    /// The server's process id. None: its process is hidden.
    pub(crate) pid: Option<u32>,
    /// The server's statistics. None: it does not answer, or only with a login or TLS.
    pub(crate) stats: Option<RunningStats>,
    /// TCP addresses at which clients get answers.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// An address at which a program listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// A Unix socket with an abstract name, without its first byte.
    Abstract(String),
}

/// The result of asking at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StatsAnswer {
    Stats(Box<RunningStats>),
    /// No answer within [`PATIENCE`].
    Silent,
    /// The peer closes the connection, wants a login or TLS, or is another program.
    Other,
}

impl Endpoint {
    fn of_unix(path: &str) -> Self {
        match path.strip_prefix('@') {
            Some(name) => Self::Abstract(name.to_owned()),
            None => Self::Unix(PathBuf::from(path)),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => path.display().to_string(),
            Self::Abstract(name) => format!("@{name}"),
        }
    }

    fn lines(&self, command: &str) -> io::Result<Vec<String>> {
        let stream = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(&network::reachable(*address), PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return ask(stream, command);
            }
            Self::Unix(path) => UnixStream::connect(path)?,
            Self::Abstract(name) => UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)?,
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        ask(stream, command)
    }

    /// Asks for statistics. `is_open`: the server needs neither TLS nor a login; otherwise it is asked for a
    /// sign of life only.
    fn ask(&self, is_open: bool) -> StatsAnswer {
        let general = match self.lines(if is_open { "stats" } else { "version" }) {
            Ok(lines) => running::parse(&lines),
            Err(error) if is_silence(&error) => return StatsAnswer::Silent,
            Err(_) => return StatsAnswer::Other,
        };
        let more = |command| self.lines(command).map(|lines| running::parse(&lines)).unwrap_or_default();
        StatsAnswer::Stats(Box::new(RunningStats {
            general,
            own: more("stats cattlegrid"),
            loaders: more("stats loaders"),
            follow: more("stats follow"),
        }))
    }
}

/// Asks at all addresses at the same time.
fn ask_all(places: Vec<Endpoint>, is_open: bool) -> Vec<(Endpoint, StatsAnswer)> {
    let (sender, receiver) = mpsc::channel();
    for (number, place) in places.iter().enumerate() {
        let (sender, place) = (sender.clone(), place.clone());
        // A thread that still waits ends with the process.
        std::thread::spawn(move || sender.send((number, place.ask(is_open))).is_ok());
    }
    drop(sender);
    let mut answers: Vec<_> = places.into_iter().map(|place| (place, StatsAnswer::Silent)).collect();
    let end = time::nanos() + u64::try_from(ALL.as_nanos()).unwrap_or(u64::MAX);
    for _ in 0..answers.len() {
        let left = Duration::from_nanos(end.saturating_sub(time::nanos()));
        let Ok((number, answer)) = receiver.recv_timeout(left) else { break };
        answers[number].1 = answer;
    }
    answers
}

/// The process id that a server reports.
pub(crate) fn says(stats: &RunningStats) -> Option<u32> {
    stats.general.get("pid")?.parse().ok()
}

/// Whether the process that a server names is that server: it has the socket, or, if its descriptors are
/// hidden, it is a program of this name.
pub(crate) fn is_it(files: &SystemFiles, pid: u32, inode: Option<u64>) -> bool {
    let holds = inode.and_then(|inode| machine::holds(files, pid, inode));
    holds.unwrap_or_else(|| machine::is_program(files, pid, &["cattlegrid", "memcached"]))
}

/// The addresses at which a process listens, as far as its descriptors are readable.
fn places_of(files: &SystemFiles, pid: u32) -> Vec<Endpoint> {
    let has = |inode| machine::holds(files, pid, inode) == Some(true);
    let tcp = machine::listening(files, None).into_iter().filter(|one| has(one.inode));
    let unix = machine::listening_unix(files).into_iter().filter(|one| has(one.inode));
    tcp.map(|one| Endpoint::Tcp(one.address)).chain(unix.map(|one| Endpoint::of_unix(&one.path))).collect()
}

/// Whether a process answers as Cattlegrid does, whatever its name.
pub(crate) fn answers(files: &SystemFiles, pid: u32) -> bool {
    let all = ask_all(places_of(files, pid), true);
    all.iter().any(|(_, answer)| matches!(answer, StatsAnswer::Stats(stats) if running::is_ours(stats)))
}

/// The running server: the named process, or the Cattlegrid that listens at the settings' addresses. Also all
/// answers.
pub(crate) fn find(
    settings: &Settings,
    pid: Option<u32>,
    files: &SystemFiles,
    to: &mut Findings,
) -> (Option<RunningServer>, Vec<(Endpoint, StatsAnswer)>) {
    let of_process = pid.map(|pid| places_of(files, pid)).unwrap_or_default();
    let is_seen = !of_process.is_empty();
    let places = if is_seen {
        of_process
    } else {
        let tcp = network::addresses(settings).into_iter().filter(|one| network::is_taken(*one));
        let unix = settings.unix_socket.iter().filter(|path| network::knock(path).is_ok());
        tcp.map(Endpoint::Tcp).chain(unix.cloned().map(Endpoint::Unix)).collect()
    };
    let is_open = settings.tls.is_none() && !settings.auth_text() && !settings.auth_binary();
    let answers = ask_all(places, is_open);
    let (tcp, unix) = (machine::listening(files, None), machine::listening_unix(files));
    let inode = |place: &Endpoint| match place {
        Endpoint::Tcp(address) => network::of_port(&tcp, *address).map(|socket| socket.inode),
        place => unix.iter().find(|one| Endpoint::of_unix(&one.path) == *place).map(|one| one.inode),
    };
    // For each address the process, if it is a Cattlegrid.
    let is_ours = |owner: &machine::SocketOwner| owner.name.starts_with("cattlegrid");
    let owners: Vec<Option<u32>> = answers
        .iter()
        .map(|(place, _)| machine::owner(files, inode(place)?).filter(is_ours).map(|owner| owner.pid))
        .collect();
    let is_silent = silent(&answers, |at| pid.or(owners[at]), to);
    let addresses = answers.iter().filter_map(|(place, answer)| match (place, answer) {
        (Endpoint::Tcp(address), StatsAnswer::Stats(_) | StatsAnswer::Other) => Some(*address),
        _ => None,
    });
    let addresses: Vec<SocketAddr> = addresses.collect();
    let heard = answers.iter().find_map(|(place, answer)| match answer {
        StatsAnswer::Stats(stats) => Some((place, &**stats)),
        _ => None,
    });
    let live = if let Some(pid) = pid {
        // An answer at an address of the settings counts only if it is from this process.
        let stats = heard.filter(|(_, stats)| is_seen || says(stats).is_none_or(|own| own == pid));
        Some(RunningServer { pid: Some(pid), stats: stats.map(|(_, stats)| stats.clone()), addresses })
    } else {
        let ours = owners.iter().flatten().next().copied();
        let heard = heard.filter(|(_, stats)| running::is_ours(stats));
        let named =
            heard.and_then(|(place, stats)| says(stats).filter(|pid| is_it(files, *pid, inode(place))));
        let stats = heard.map(|(_, stats)| stats.clone());
        (stats.is_some() || ours.is_some()).then_some(RunningServer { pid: ours.or(named), stats, addresses })
    };
    match &live {
        Some(RunningServer { pid: None, .. }) => to.unseen(
            "process",
            "the server runs where its process cannot be seen (another pid namespace?): its limits and memory are not judged; run this \
             there",
        ),
        Some(RunningServer { stats: None, .. }) if !is_silent => unheard(is_open, to),
        _ => {}
    }
    (live, answers)
}

/// The server's addresses that do not answer, and whether there are any. `owner`: the process that listens at
/// the address of this number.
fn silent(
    answers: &[(Endpoint, StatsAnswer)],
    owner: impl Fn(usize) -> Option<u32>,
    to: &mut Findings,
) -> bool {
    let mut is_silent = false;
    for (at, (place, answer)) in answers.iter().enumerate() {
        let (StatsAnswer::Silent, Some(pid)) = (answer, owner(at)) else { continue };
        is_silent = true;
        to.problem(
            "answer",
            format!("{} accepts connections and does not answer within {} s", place.shown(), PATIENCE.as_secs()),
            "Clients wait until their own time is over.",
            format!(
                "`grep State /proc/{pid}/status`: T is stopped (kill -CONT {pid}), D waits for a disk or swap; else restart it: systemctl \
                 restart cattlegrid"
            ),
        );
    }
    is_silent
}

fn unheard(is_open: bool, to: &mut Findings) {
    let how = if is_open {
        "it does not answer `stats` at the addresses of these settings; give the options that it was started with"
    } else {
        "its addresses want TLS or a login; `stats`, `stats cattlegrid` and `stats loaders` by a client that has them"
    };
    to.unseen("statistics", how);
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
