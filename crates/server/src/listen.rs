//! Opens all sockets on which the server listens. First each gets its address; later, when the server is
//! ready, all begin to listen. A client that connects in between is refused at once instead of waiting.
//!
//! # Invariants
//! * All sockets are opened, or none: an error closes those that were opened.
//! * Sockets do not block, and connections accepted from TCP ones inherit `TCP_NODELAY` and `SO_KEEPALIVE`
//!   (Linux copies both).

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cattlegrid_config::{Host, ListenAddress, Settings, TcpPort};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::sys::{self, Account, reason};
use crate::{log, passed};

/// A socket with its address, which begins to listen with [`Listeners::listen`].
#[derive(Debug)]
pub struct Listener {
    /// The socket, non-blocking.
    pub fd: OwnedFd,
    /// The address; for an ephemeral port, with the port that the system chose.
    pub address: Address,
    /// Whether its connections speak TLS.
    pub tls: bool,
}

/// Where a socket listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP, version 4 or 6.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// All sockets of the server. The file of the Unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listeners {
    /// The sockets: the Unix socket first, then TCP in the order of `-l`.
    pub sockets: Vec<Listener>,
    unix_file: Option<UnixFile>,
}

impl Listeners {
    /// Takes the sockets, to be dropped when accepting ends; the rest must be kept until the end.
    pub fn take_sockets(&mut self) -> Vec<Listener> {
        std::mem::take(&mut self.sockets)
    }

    /// Begins to listen on all sockets.
    ///
    /// # Errors
    /// The system refuses, for example because another server has taken the port since [`bind`].
    pub fn listen(&self, settings: &Settings) -> Result<(), ListenError> {
        for listener in &self.sockets {
            // A socket from the service manager listens already, with its own backlog.
            if SockRef::from(&listener.fd).is_listener().unwrap_or(false) {
                continue;
            }
            let failed = |error: io::Error| {
                let address = &listener.address;
                ListenError(format!("failed to listen on {address}: {}", reason(&error)))
            };
            SockRef::from(&listener.fd).listen(settings.backlog).map_err(failed)?;
        }
        Ok(())
    }
}

/// The message of a socket that could not be opened: which and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ListenError(String);

impl ListenError {
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

/// The addresses that the admin address means. `port`: for an address without a port.
pub(crate) fn admin_addresses(wanted: &ListenAddress, port: u16) -> io::Result<Vec<SocketAddr>> {
    resolve(&wanted.host, wanted.port.unwrap_or(port))
}

/// Opens the sockets of the admin address, without listening. `port`: for an address without a port.
pub(crate) fn bind_admin(
    wanted: &ListenAddress,
    port: u16,
) -> Result<Vec<(std::net::TcpListener, SocketAddr)>, ListenError> {
    let failed = |error: io::Error| ListenError(format!("--admin {wanted}: {}", reason(&error)));
    let addresses = admin_addresses(wanted, port).map_err(failed)?;
    let mut sockets = Vec::new();
    let mut skipped = None;
    for address in &addresses {
        match open_tcp(*address) {
            Ok((socket, bound)) => sockets.push((socket.into(), bound)),
            Err(error) if addresses.len() > 1 && is_not_here(&error) => skipped = Some(error),
            Err(error) => return Err(failed(error)),
        }
    }
    match skipped {
        Some(error) if sockets.is_empty() => Err(failed(error)),
        _ => Ok(sockets),
    }
}

/// Begins to listen on a socket of the admin address.
pub(crate) fn listen_admin(socket: &std::net::TcpListener) -> io::Result<()> {
    SockRef::from(socket).listen(ADMIN_BACKLOG)
}

/// The most connections to the admin address that wait to be accepted.
const ADMIN_BACKLOG: i32 = 64;

/// Whether the machine lacks the address or its family.
fn is_not_here(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Opens the sockets that the settings name, or takes those that the service manager passes instead. Opened
/// sockets do not listen yet. `owner`: the user to whom root gives the Unix socket, if it opens it for
/// another user.
///
/// To be called before threads start, since the access bits of the Unix socket are set by the mask of the
/// process.
///
/// # Errors
/// A socket cannot be opened.
pub fn bind(settings: &Settings, owner: Option<&Account>) -> Result<Listeners, ListenError> {
    let passed = passed::sockets(settings)?;
    if !passed.is_empty() {
        log::info("the service manager has passed the sockets: the addresses of -l, -p and -s are not used");
        return Ok(Listeners { sockets: passed, unix_file: None });
    }
    let mut listeners = Listeners { sockets: Vec::new(), unix_file: None };
    if let Some(path) = &settings.unix_socket {
        let failed = |error: io::Error| {
            ListenError(format!("failed to listen on UNIX socket: {}: {}", path.display(), reason(&error)))
        };
        let socket = bind_unix(path, settings.unix_mask).map_err(failed)?;
        listeners.unix_file = Some(UnixFile { path: path.clone() });
        if let Some(owner) = owner {
            owner.own_socket(path).map_err(failed)?;
        } else if let Some(user) = &settings.user {
            sys::share_socket(path, user).map_err(failed)?;
        }
        listeners.sockets.push(Listener {
            fd: socket.into(),
            address: Address::Unix(path.clone()),
            tls: false,
        });
    }
    for (address, port) in settings.tcp_addresses() {
        let tls = settings.tls.is_some() && address.tls;
        for (socket, bound) in bind_tcp(settings, &address, port)? {
            listeners.sockets.push(Listener { fd: socket.into(), address: Address::Tcp(bound), tls });
        }
    }
    Ok(listeners)
}

/// Opens the sockets of one entry of `-l`: a name may have several addresses.
fn bind_tcp(
    settings: &Settings,
    address: &ListenAddress,
    port: TcpPort,
) -> Result<Vec<(Socket, SocketAddr)>, ListenError> {
    let number = match port {
        TcpPort::Fixed(number) => number,
        TcpPort::Ephemeral | TcpPort::None => 0,
    };
    let failed = |reason: String| {
        ListenError(if settings.listen.is_empty() {
            format!("failed to listen on TCP port {port}: {reason}")
        } else if address.port.is_some() {
            format!("failed to listen on one of interface(s) {address}: {reason}")
        } else {
            format!("failed to listen on one of interface(s) {address}, port {port}: {reason}")
        })
    };
    let addresses = resolve(&address.host, number).map_err(|error| failed(reason(&error)))?;
    let mut sockets = Vec::new();
    let mut skipped = None;
    for wanted in &addresses {
        match open_tcp(*wanted) {
            Ok(socket) => sockets.push(socket),
            // A name or `*` may stand for addresses that the machine does not have, often IPv6 ones.
            Err(error) if addresses.len() > 1 && is_not_here(&error) => {
                log::info(format_args!("{address}: not listening on {wanted}: {}", reason(&error)));
                skipped = Some(error);
            }
            Err(error) => return Err(failed(reason(&error))),
        }
    }
    match skipped {
        Some(error) if sockets.is_empty() => Err(failed(reason(&error))),
        _ => Ok(sockets),
    }
}

fn resolve(host: &Host, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = match host {
        Host::Any => vec![
            SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
            SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
        ],
        Host::Named(name) => (name.as_str(), port).to_socket_addrs()?.collect(),
    };
    // A hosts file may give the same address twice.
    let mut seen = std::collections::BTreeSet::new();
    addresses.retain(|address| seen.insert(*address));
    Ok(addresses)
}

fn open_tcp(address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // With this, 0.0.0.0 and [::] can listen on the same port.
        socket.set_only_v6(true)?;
    }
    socket.set_keepalive(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, bound))
}

fn bind_unix(path: &Path, bits: u32) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    sys::with_access_bits(bits, || socket.bind(&address))?;
    Ok(socket)
}

/// Removes a Unix socket on which no process listens. Any other file stays, and the bind fails then.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// The file of our Unix socket, removed when this is dropped.
#[derive(Debug)]
struct UnixFile {
    path: PathBuf,
}

impl Drop for UnixFile {
    fn drop(&mut self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => log::warning(format_args!(
                "could not remove the UNIX socket {}: {}",
                self.path.display(),
                reason(&error)
            )),
            _ => {}
        }
    }
}

/// Writes all ports to the file of `MEMCACHED_PORT_FILENAME`, in one piece, for the process that started us
/// with `-p -1`.
pub fn write_port_file(path: &Path, listeners: &Listeners) -> Result<(), ListenError> {
    let mut text = String::new();
    for listener in &listeners.sockets {
        if let Address::Tcp(address) = listener.address {
            let family = if address.is_ipv6() { "INET6" } else { "INET" };
            writeln!(text, "TCP {family}: {}", address.port()).expect("writing to a String cannot fail");
        }
    }
    sys::replace_file(path, &text).map_err(|error| {
        ListenError(format!("MEMCACHED_PORT_FILENAME: cannot write {}: {}", path.display(), reason(&error)))
    })
}

/// The socket by which a connection came in.
#[derive(Debug)]
pub(crate) struct ListenerInfo {
    /// The descriptor's number.
    pub(crate) fd: i32,
    pub(crate) address: Address,
    pub(crate) tls: bool,
}

impl ListenerInfo {
    /// The socket's name in `stats conns`.
    pub(crate) fn name(&self) -> String {
        match &self.address {
            Address::Tcp(address) => format!("tcp:{address}"),
            Address::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use cattlegrid_config::{Command, parse_args};

    fn settings(words: &[&str]) -> Settings {
        match parse_args(words.iter().copied()).unwrap() {
            Command::Serve(settings) => *settings,
            other => panic!("{other:?}"),
        }
    }

    /// As a server without loaders: it listens at once.
    fn open(words: &[&str]) -> Result<Listeners, ListenError> {
        let settings = settings(words);
        let listeners = bind(&settings, None)?;
        listeners.listen(&settings)?;
        Ok(listeners)
    }

    #[test]
    fn before_it_listens_clients_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for words in [&["-p", "-1"][..], &["-s", path.to_str().unwrap()]] {
            let settings = settings(words);
            let listeners = bind(&settings, None).unwrap();
            let connect = || match &listeners.sockets[0].address {
                Address::Tcp(address) => TcpStream::connect(address).map(drop),
                Address::Unix(path) => UnixStream::connect(path).map(drop),
            };
            assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            listeners.listen(&settings).unwrap();
            connect().unwrap();
        }
    }

    fn tcp(listener: &Listener) -> SocketAddr {
        match &listener.address {
            Address::Tcp(address) => *address,
            Address::Unix(path) => panic!("{}", path.display()),
        }
    }

    #[test]
    fn accepted_connections_inherit_what_tcp_needs() {
        let listeners = open(&["-p", "-1"]).unwrap();
        let address = tcp(&listeners.sockets[0]);
        assert_eq!(address.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let listener = TcpListener::from(listeners.sockets[0].fd.try_clone().unwrap());
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let _client = TcpStream::connect(address).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let accepted = SockRef::from(&accepted);
        assert!(accepted.tcp_nodelay().unwrap() && accepted.keepalive().unwrap());
    }

    #[test]
    fn several_addresses_each_with_its_port_and_tls() {
        let listeners =
            open(&["-p", "-1", "-l", "127.0.0.1,notls:127.0.0.1", "-Z", "-o", "ssl_chain_cert=c"]).unwrap();
        let tls: Vec<bool> = listeners.sockets.iter().map(|listener| listener.tls).collect();
        assert_eq!(tls, [true, false]);
        assert_ne!(tcp(&listeners.sockets[0]).port(), tcp(&listeners.sockets[1]).port());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports");
        write_port_file(&file, &listeners).unwrap();
        let [one, two] = [0, 1].map(|place: usize| tcp(&listeners.sockets[place]).port());
        let lines = format!("TCP INET: {one}\nTCP INET: {two}\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), lines);
        assert!(write_port_file(&dir.path().join("no/such"), &listeners).is_err());
    }

    #[test]
    fn version_6_and_every_address_where_the_machine_has_them() {
        if let Err(error) = TcpListener::bind("[::1]:0") {
            assert!(open(&["-p", "-1", "-l", "::1"]).is_err(), "{error}");
        } else {
            let listeners = open(&["-p", "-1", "-l", "::1"]).unwrap();
            assert!(tcp(&listeners.sockets[0]).is_ipv6());
            let dir = tempfile::tempdir().unwrap();
            write_port_file(&dir.path().join("ports"), &listeners).unwrap();
            let text = std::fs::read_to_string(dir.path().join("ports")).unwrap();
            assert!(text.starts_with("TCP INET6: "));
        }
        let named = open(&["-p", "-1", "-l", "localhost"]).unwrap();
        assert!(named.sockets.iter().all(|listener| tcp(listener).ip().is_loopback()));
        assert_eq!(resolve(&Host::Any, 5).unwrap().len(), 2);
    }

    #[test]
    fn addresses_that_cannot_be_had() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let error = open(&["-p", &port]).unwrap_err().to_string();
        assert_eq!(error, format!("failed to listen on TCP port {port}: Address already in use"));
        let error = open(&["-p", &port, "-l", "127.0.0.1"]).unwrap_err().to_string();
        assert!(error.starts_with("failed to listen on one of interface(s) 127.0.0.1, port "), "{error}");
        let error = open(&["-l", "no-such-host.invalid"]).unwrap_err().to_string();
        assert!(error.starts_with("failed to listen on one of interface(s) no-such-host.invalid"), "{error}");
    }

    #[test]
    fn a_unix_socket_with_its_bits_and_without_what_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let words = ["-s", path.to_str().unwrap(), "-a", "640"];
        let listeners = open(&words).unwrap();
        assert_eq!(listeners.sockets.len(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        UnixStream::connect(&path).unwrap();
        let error = open(&words).unwrap_err().to_string();
        assert!(error.ends_with("Address already in use"), "{error}");
        assert!(path.exists());
        drop(listeners);
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind, as after a crash");
        drop(open(&words).unwrap());

        std::fs::write(&path, "no socket").unwrap();
        assert!(open(&words).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "no socket");
        let nowhere = dir.path().join("no/such");
        let error = open(&["-s", nowhere.to_str().unwrap()]).unwrap_err().to_string();
        assert!(error.ends_with("No such file or directory"), "{error}");
    }
}
