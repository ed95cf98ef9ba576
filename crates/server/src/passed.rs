//! Sockets that the service manager has opened and passed on, `sd_listen_fds(3)`: they replace the addresses
//! of the options.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use cattlegrid_config::Settings;
use socket2::{Domain, SockAddr, SockRef, Type};

use crate::first_process::is_addressed;
use crate::listen::{Address, ListenError, Listener};
use crate::sys::{self, reason};

/// The first descriptor that is passed.
const FIRST: i32 = 3;
/// Most sockets that are taken.
const MOST: i32 = 1024;

/// What `LISTEN_FDS` passes; empty if nothing is passed to this process.
///
/// # Errors
/// What was passed is not a stream socket of TCP or a unix one; says which descriptor, and what would be
/// right.
pub(crate) fn sockets(settings: &Settings) -> Result<Vec<Listener>, ListenError> {
    let (pid, count) = (std::env::var_os("LISTEN_PID"), std::env::var_os("LISTEN_FDS"));
    let Some(count) = announced(pid.as_deref(), count.as_deref())? else { return Ok(Vec::new()) };
    (FIRST..FIRST + count)
        .map(|number| {
            let fd = sys::passed_descriptor(number)
                .map_err(|error| not_usable(number, &format!("it is not open: {}", reason(&error))))?;
            listener(fd, number, settings)
        })
        .collect()
}

/// How many descriptors are announced to this process. A manager that announces them to another one means
/// nothing by them here.
fn announced(pid: Option<&OsStr>, count: Option<&OsStr>) -> Result<Option<i32>, ListenError> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(None) };
    if !is_addressed(pid) {
        return Ok(None);
    }
    let number =
        count.to_str().and_then(|text| text.parse().ok()).filter(|number| (0..=MOST).contains(number));
    match number {
        Some(0) => Ok(None),
        Some(number) => Ok(Some(number)),
        None => Err(ListenError::new(format!(
            "LISTEN_FDS={}: must be a number of sockets, 0 to {MOST}",
            count.display()
        ))),
    }
}

fn not_usable(number: i32, why: &str) -> ListenError {
    ListenError::new(format!(
        "descriptor {number} of LISTEN_FDS: {why}; each must be a listening stream socket (ListenStream= of a socket unit with \
         Accept=no)"
    ))
}

/// The socket as one to accept from.
fn listener(fd: OwnedFd, number: i32, settings: &Settings) -> Result<Listener, ListenError> {
    let failed = |error: std::io::Error| not_usable(number, &reason(&error));
    let socket = SockRef::from(&fd);
    if socket.r#type().map_err(|_| not_usable(number, "it is no socket"))? != Type::STREAM {
        return Err(not_usable(number, "it is no stream socket, and there is no UDP"));
    }
    // A connected one has a peer: a unit with Accept=yes passes it.
    if socket.peer_addr().is_ok() {
        return Err(not_usable(number, "it is a connection"));
    }
    let domain = socket.domain().map_err(failed)?;
    let address = if domain == Domain::UNIX {
        Address::Unix(unix_name(&socket.local_addr().map_err(failed)?).into())
    } else if let Some(address) = socket.local_addr().map_err(failed)?.as_socket() {
        socket.set_keepalive(true).map_err(failed)?;
        socket.set_tcp_nodelay(true).map_err(failed)?;
        Address::Tcp(address)
    } else {
        return Err(not_usable(number, "it is neither TCP nor a unix socket"));
    };
    socket.set_nonblocking(true).map_err(failed)?;
    let tls = settings.tls.is_some() && matches!(address, Address::Tcp(_));
    Ok(Listener { fd, address, tls })
}

/// The path of a Unix socket, or `@name`.
fn unix_name(address: &SockAddr) -> String {
    match (address.as_pathname(), address.as_abstract_namespace()) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(name)) => format!("@{}", String::from_utf8_lossy(name)),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_what_is_announced_to_this_process_counts() {
        let own = std::process::id().to_string();
        let of = |pid: &str, count: &str| announced(Some(OsStr::new(pid)), Some(OsStr::new(count)));
        assert_eq!(of(&own, "2").unwrap(), Some(2));
        assert_eq!(of(&own, "0").unwrap(), None);
        assert_eq!(of("1", "2").unwrap(), None);
        assert_eq!(of("much", "2").unwrap(), None);
        assert_eq!(announced(None, Some(OsStr::new("2"))).unwrap(), None);
        for count in ["", "-1", "x", "1025"] {
            let error = of(&own, count).unwrap_err().to_string();
            assert_eq!(error, format!("LISTEN_FDS={count}: must be a number of sockets, 0 to 1024"));
        }
    }

    #[test]
    fn stream_sockets_are_taken_and_nothing_else() {
        let settings = Settings::default();
        let taken = |fd: OwnedFd| listener(fd, 3, &settings);
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let listener = taken(tcp.into()).unwrap();
        assert_eq!(listener.address, Address::Tcp(address));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(taken(UnixListener::bind(&path).unwrap().into()).unwrap().address, Address::Unix(path));

        let refused = |fd: OwnedFd| taken(fd).unwrap_err().to_string();
        let udp = refused(UdpSocket::bind("127.0.0.1:0").unwrap().into());
        assert!(
            udp.starts_with("descriptor 3 of LISTEN_FDS: it is no stream socket, and there is no UDP;"),
            "{udp}"
        );
        let file = refused(tempfile::tempfile().unwrap().into());
        assert!(file.starts_with("descriptor 3 of LISTEN_FDS: it is no socket;"), "{file}");
        let connection = refused(TcpStream::connect(address).unwrap().into());
        assert!(connection.contains("it is a connection"), "{connection}");
    }
}
