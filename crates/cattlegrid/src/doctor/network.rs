//! Addresses: whether the server can listen there, which process already does, and which hosts can reach it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use cattlegrid_config::{Host, ListenAddress, Settings, TcpPort, VerifyMode};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::finding::Findings;
use super::live::{Endpoint, StatsAnswer, is_it, says};
use super::machine::{SocketOwner, SystemFiles, TcpListenSocket, listening, owner};

/// Most bytes of a Unix socket's path.
const UNIX_PATH_MAX: usize = 107;

/// The addresses of an entry of `-l`.
pub(crate) fn resolve(address: &ListenAddress, port: u16) -> io::Result<Vec<SocketAddr>> {
    match &address.host {
        Host::Any => Ok(vec![([0, 0, 0, 0], port).into(), ([0; 16], port).into()]),
        Host::Named(name) => Ok((name.as_str(), port).to_socket_addrs()?.collect()),
    }
}

/// The settings' addresses with a port, resolved.
pub(crate) fn addresses(settings: &Settings) -> Vec<SocketAddr> {
    let with_port = settings.tcp_addresses().into_iter().filter_map(|(address, port)| match port {
        TcpPort::Fixed(port) => Some((address, port)),
        TcpPort::Ephemeral | TcpPort::None => None,
    });
    with_port.flat_map(|(address, port)| resolve(&address, port).unwrap_or_default()).collect()
}

/// The reason why the system does not give an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressRefusal {
    Taken,
    Forbidden,
    NotHere,
    Other,
}

/// Checks that the address is available: binds it as the server would, and releases it at once without
/// listening.
fn bind(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())
}

fn refusal(error: &io::Error) -> AddressRefusal {
    match error.kind() {
        io::ErrorKind::AddrInUse => AddressRefusal::Taken,
        io::ErrorKind::PermissionDenied => AddressRefusal::Forbidden,
        io::ErrorKind::AddrNotAvailable => AddressRefusal::NotHere,
        _ if Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT) => AddressRefusal::NotHere,
        _ => AddressRefusal::Other,
    }
}

/// The owner of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AddressOwner {
    Process(SocketOwner),
    /// A server answers, but the process that it names is not on this machine.
    Elsewhere,
    Unknown,
}

/// Judges whether each address is available. `own`: the process id of the running server that is judged; 0 if
/// its process is not known. `answers`: of the programs that listen there.
pub(crate) fn judge_ports(
    settings: &Settings,
    files: &SystemFiles,
    own: Option<u32>,
    answers: &[(Endpoint, StatsAnswer)],
    to: &mut Findings,
) {
    let mut seen: Vec<SocketAddr> = Vec::new();
    let taken = listening(files, None);
    let each = settings.tcp_addresses().into_iter().filter_map(|(address, port)| match port {
        TcpPort::Fixed(port) => Some((address, port, "port")),
        TcpPort::Ephemeral | TcpPort::None => None,
    });
    let admin = settings.admin.clone().map(|address| {
        let port = address.port.unwrap_or(cattlegrid_server::ADMIN_PORT);
        (address, port, "admin port")
    });
    for (address, port, name) in each.chain(admin) {
        let all = match resolve(&address, port) {
            Ok(all) => all,
            Err(error) => {
                let found = format!("{}: {error}", address.host_text());
                let mend = "an address of this machine, or a line in /etc/hosts";
                to.problem(name, found, "The server does not start: the name has no address.", mend);
                continue;
            }
        };
        let several = all.len() > 1;
        let twice =
            all.iter().find_map(|one| Some((*one, *seen.iter().find(|other| collide(*one, **other))?)));
        if let Some((one, other)) = twice {
            let found = if one == other {
                format!("{one} is named twice")
            } else {
                format!("{one} and {other} are of one port, and one of them is all addresses")
            };
            to.problem(
                name,
                found,
                "The server does not start: it has the address already.",
                "leave one of them out",
            );
            continue;
        }
        seen.extend(&all);
        for address in all {
            match bind(address) {
                Ok(()) => to.passed(name, format!("{address} is free")),
                // Names and `*` may stand for addresses that the machine does not have.
                Err(error) if several && refusal(&error) == AddressRefusal::NotHere => {}
                Err(error) => {
                    let socket = of_port(&taken, address);
                    let holder = socket.and_then(|socket| owner(files, socket.inode));
                    let inode = socket.map(|socket| socket.inode);
                    let who = holder
                        .map_or_else(|| says_who(address, files, inode, answers), AddressOwner::Process);
                    let is_own = own.is_some_and(|own| match &who {
                        AddressOwner::Process(who) => who.pid == own,
                        AddressOwner::Elsewhere | AddressOwner::Unknown => true,
                    });
                    if is_own && refusal(&error) == AddressRefusal::Taken {
                        to.passed(name, format!("{address}: the running server has it"));
                    } else {
                        refused(name, address, refusal(&error), &error.to_string(), who, to);
                    }
                }
            }
        }
    }
}

/// The process that has the port, as its own `stats` names it, since processes of other users may be hidden.
fn says_who(
    address: SocketAddr,
    files: &SystemFiles,
    inode: Option<u64>,
    answers: &[(Endpoint, StatsAnswer)],
) -> AddressOwner {
    let said = answers.iter().find_map(|(place, answer)| match (place, answer) {
        (Endpoint::Tcp(one), StatsAnswer::Stats(stats)) if *one == address => says(stats),
        _ => None,
    });
    match said {
        None => AddressOwner::Unknown,
        Some(pid) if is_it(files, pid, inode) => {
            let name = super::machine::program_of(files, pid).unwrap_or_else(|| "memcached".to_owned());
            AddressOwner::Process(SocketOwner { pid, name })
        }
        Some(_) => AddressOwner::Elsewhere,
    }
}

/// Whether a server cannot listen at both addresses.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// The address at which a client on this machine reaches a server that listens there.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        _ if !address.ip().is_unspecified() => address,
        SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, address.port()).into(),
        SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, address.port()).into(),
    }
}

/// The socket that listens on this port, at this address or at all addresses.
pub(crate) fn of_port(sockets: &[TcpListenSocket], wanted: SocketAddr) -> Option<TcpListenSocket> {
    let overlaps =
        |one: IpAddr, other: IpAddr| one == other || one.is_unspecified() || other.is_unspecified();
    let same = |socket: &&TcpListenSocket| {
        socket.address.port() == wanted.port() && overlaps(socket.address.ip(), wanted.ip())
    };
    sockets.iter().find(same).copied()
}

fn refused(
    name: &'static str,
    address: SocketAddr,
    why: AddressRefusal,
    error: &str,
    who: AddressOwner,
    to: &mut Findings,
) {
    let port = address.port();
    match (why, who) {
        (AddressRefusal::Taken, AddressOwner::Process(SocketOwner { pid, name: program })) => {
            let mend = match program.as_str() {
                "memcached" => format!("stop it: systemctl disable --now memcached, or kill {pid}; or another port (-p)"),
                _ => format!("stop it (kill {pid}), or another port (-p)"),
            };
            let found = format!("{address} is taken by {program}, process {pid}");
            to.problem(name, found, "The server does not start while another program listens there.", mend);
        }
        (AddressRefusal::Taken, AddressOwner::Elsewhere) => to.problem(
            name,
            format!("{address} is taken by a server that runs where its process cannot be seen (another pid namespace?)"),
            "The server does not start while another program listens there.",
            "stop it where it was started (its container), or another port (-p)",
        ),
        (AddressRefusal::Taken, AddressOwner::Unknown) => to.problem(
            name,
            format!("{address} is taken by a process that this user cannot see"),
            "The server does not start while another program listens there.",
            format!("stop it (as root `ss -ltnp sport = :{port}` names it), or another port (-p)"),
        ),
        (AddressRefusal::Forbidden, _) => to.problem(
            name,
            format!("this user may not listen on {address}"),
            "Started by this user the server does not start: ports below net.ipv4.ip_unprivileged_port_start need a capability.",
            "AmbientCapabilities=CAP_NET_BIND_SERVICE in its unit file, or start it as root with -u, or a port from 1024 on",
        ),
        (AddressRefusal::NotHere, _) => to.problem(
            name,
            format!("no interface of this machine has {}", address.ip()),
            "The server does not start.",
            "-l with an address of `ip -brief address`; if one comes up later: After=network-online.target in its unit file",
        ),
        (AddressRefusal::Other, _) => {
            to.problem(name, format!("{address}: {error}"), "The server does not start.", "another address (-l, -p)");
        }
    }
}

/// Judges `-s`: the path, and the file there. `own`: whether the server runs.
pub(crate) fn judge_unix(settings: &Settings, own: bool, to: &mut Findings) {
    let Some(path) = &settings.unix_socket else { return };
    let name = "unix socket";
    let shown = path.display();
    let bytes = path.as_os_str().len();
    if bytes > UNIX_PATH_MAX {
        let found = format!("its path has {bytes} bytes, the system allows {UNIX_PATH_MAX}");
        to.problem(
            name,
            found,
            "The server does not start.",
            "a shorter path (-s), such as /run/cattlegrid/socket",
        );
        return;
    }
    let there = std::fs::symlink_metadata(path);
    match there {
        Ok(data) if data.file_type().is_socket() => {
            match (knock(path), own) {
                (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => to.unseen(
                    name,
                    format!(
                        "whether a server listens on {shown}: this user may not connect there; run this as root or as the user \
                         of the server"
                    ),
                ),
                (Ok(()), false) => {
                    let mend = format!("stop it (`ss -lxp src {shown}` names it), or another path (-s)");
                    let why = "The server does not start while another one serves there.";
                    to.problem(name, format!("a server listens on {shown}"), why, mend);
                }
                (Ok(()), true) => to.passed(name, format!("{shown}: the running server has it")),
                (Err(_), _) if !may_make(directory(path)) => cannot_make(name, path, to),
                (Err(_), _) => to.passed(name, format!("{shown}: left over from another run; it is replaced")),
            }
        }
        Ok(_) => {
            let why = "The server does not start: it replaces sockets only.";
            to.problem(
                name,
                format!("{shown} is something else than a socket"),
                why,
                "move it away, or another path (-s)",
            );
        }
        Err(_) if may_make(directory(path)) => to.passed(name, format!("{shown} can be made")),
        Err(_) => cannot_make(name, path, to),
    }
}

/// Connects to a Unix socket and closes the connection. A server with a full queue counts as a server.
pub(crate) fn knock(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        result => result,
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether this user can create and replace files in a directory.
fn may_make(dir: &Path) -> bool {
    access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

fn cannot_make(name: &'static str, path: &Path, to: &mut Findings) {
    let found = format!("this user cannot make files in {}", directory(path).display());
    let mend =
        "RuntimeDirectory=cattlegrid in its unit file and -s /run/cattlegrid/socket, or another directory";
    to.problem(name, found, "The server does not start.", mend);
}

/// The range of hosts that can reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// This machine.
    Local,
    /// A private network's hosts.
    Private,
    /// Every host, or every network that the machine has.
    Public,
}

fn reach(ip: IpAddr) -> Reach {
    match ip {
        ip if ip.is_loopback() => Reach::Local,
        IpAddr::V4(ip) if ip.is_private() || ip.is_link_local() || in_shared_space(ip.octets()) => {
            Reach::Private
        }
        IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local() => Reach::Private,
        _ => Reach::Public,
    }
}

/// 100.64.0.0/10, the shared address space of providers.
fn in_shared_space(octets: [u8; 4]) -> bool {
    octets[0] == 100 && octets[1] & 0xc0 == 64
}

/// Judges which hosts can reach the server, and which credentials they need.
pub(crate) fn judge_exposure(settings: &Settings, to: &mut Findings) {
    let name = "who may connect";
    let logs_in = settings.auth_text() || settings.auth_binary();
    let mut all_local = true;
    for (address, port) in settings.tcp_addresses() {
        let port = if let TcpPort::Fixed(port) = port { port } else { 0 };
        let reaches = resolve(&address, port).unwrap_or_default().iter().map(|one| reach(one.ip())).max();
        let encrypted = settings.tls.as_ref().filter(|_| address.tls);
        let wants_certificate = encrypted.is_some_and(|tls| {
            let by_mode = matches!(tls.verify_mode, VerifyMode::Require | VerifyMode::Once);
            address.peer.unwrap_or(by_mode) && tls.ca_cert.is_some()
        });
        let reaches = reaches.unwrap_or(Reach::Local);
        all_local &= reaches == Reach::Local;
        let where_ = address.host_text();
        if reaches == Reach::Public && !logs_in && !wants_certificate {
            to.problem(
                name,
                format!("{where_} is open to every network of this machine, without a login or certificates of clients"),
                "Any client that can connect reads, writes and flushes everything.",
                "-l 127.0.0.1 or the address of a private interface; else -Y FILE with -Z, or -Z with -o ssl_verify_mode=2,ssl_ca_cert=FILE",
            );
        } else if reaches != Reach::Local && logs_in && encrypted.is_none() {
            to.advice(
                name,
                format!("{where_} is reached by other machines, with a login and without TLS"),
                "Passwords and values can be read on the way.",
                "-Z -o ssl_chain_cert=FILE,ssl_key=FILE",
            );
        } else if reaches == Reach::Private && !logs_in && !wants_certificate {
            to.advice(
                name,
                format!("{where_} is open to a private network, without a login or certificates of clients"),
                "Every machine of that network reads, writes and flushes everything.",
                "a firewall that lets the clients through only; or -Y FILE with -Z, or -Z with -o ssl_verify_mode=2,ssl_ca_cert=FILE",
            );
        }
    }
    if all_local {
        to.passed(name, "programs of this machine");
    }
    judge_admin(settings, to);
}

fn judge_admin(settings: &Settings, to: &mut Findings) {
    let Some(admin) = &settings.admin else { return };
    let port = admin.port.unwrap_or(cattlegrid_server::ADMIN_PORT);
    let is_local =
        resolve(admin, port).is_ok_and(|all| all.iter().all(|one| one.ip().to_canonical().is_loopback()));
    let lacks_token = settings.admin_token.is_none();
    if !is_local && (lacks_token || settings.admin_tls.is_none()) {
        to.problem(
            "admin",
            format!(
                "--admin {admin} is reached by other machines, without {}",
                if lacks_token { "a token" } else { "a certificate" }
            ),
            "The server does not start.",
            "--admin-token FILE and -o ssl_chain_cert=FILE, or --admin 127.0.0.1:11280",
        );
    } else {
        to.passed("admin", admin.to_string());
    }
}

/// Whether a program answers at a port of one of the settings' addresses; used to find the running server.
pub(crate) fn is_taken(address: SocketAddr) -> bool {
    bind(address).is_err_and(|error| refusal(&error) == AddressRefusal::Taken)
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
