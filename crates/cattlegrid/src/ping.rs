//! `cattlegrid ping`: whether a server answers, for health checks of containers, which have no other program.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::running::in_words;

/// How long each step may take: connecting, and the answer.
const STEP_MAX: Duration = Duration::from_secs(2);

/// Asks `target`: HOST:PORT or the path of a unix socket for its version, HOST:PORT/PATH for a page of
/// `--admin`. The first line of the answer; any answer in memcached's protocols is one, also that a client
/// must log in. The host `*` is [`own_address`].
///
/// # Errors
/// Nothing answers, or the page has another status than 200; says what.
pub(crate) fn ping(target: &str) -> Result<String, String> {
    let failed = |error: io::Error| format!("{target}: {}", in_words(error, STEP_MAX));
    if target.starts_with('/') {
        let stream = UnixStream::connect(target).map_err(failed)?;
        stream.set_read_timeout(Some(STEP_MAX)).map_err(failed)?;
        return ask(stream, "version\r\n").map_err(failed);
    }
    let (address, path) =
        target.split_once('/').map_or((target, None), |(address, path)| (address, Some(path)));
    let own = address.strip_prefix("*:").map(|port| format!("{}:{port}", own_address()));
    let addresses = own
        .as_deref()
        .unwrap_or(address)
        .to_socket_addrs()
        .map_err(|error| format!("{target}: must be host:port, host:port/path or /path: {error}"))?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, STEP_MAX) {
            Ok(stream) => {
                stream.set_read_timeout(Some(STEP_MAX)).map_err(failed)?;
                let Some(path) = path else { return ask(stream, "version\r\n").map_err(failed) };
                let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
                let line = ask(stream, &request).map_err(failed)?;
                let is_good = line.split(' ').nth(1) == Some("200");
                return if is_good { Ok(line) } else { Err(format!("{target}: {line}")) };
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| format!("{target}: names no address"), failed))
}

/// The address that others reach this machine by, in brackets if it is one of IPv6: that of the interface
/// which leads out; loopback if none does. Nothing is sent.
fn own_address() -> String {
    // Of networks for documentation: only the way there is looked up.
    let outside: [SocketAddr; 2] =
        [(Ipv4Addr::new(192, 0, 2, 1), 9).into(), (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into()];
    let own = outside.into_iter().find_map(|outside| {
        let any: IpAddr =
            if outside.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(outside).ok()?;
        Some(socket.local_addr().ok()?.ip())
    });
    match own {
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        Some(IpAddr::V4(address)) => address.to_string(),
        None => Ipv4Addr::LOCALHOST.to_string(),
    }
}

fn ask(mut stream: impl Read + Write, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut bytes = [0; 256];
    let count = stream.read(&mut bytes)?;
    if count == 0 {
        return Err(io::Error::other("it has closed the connection"));
    }
    Ok(String::from_utf8_lossy(&bytes[..count]).lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The answer of a server that says this.
    fn asked(answer: &'static str, path: &str) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("{}{path}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _request = stream.read(&mut [0; 256]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let result = ping(&target);
        server.join().unwrap();
        result
    }

    #[test]
    fn an_answer_is_a_sign_of_life_and_silence_is_none() {
        assert_eq!(asked("VERSION 1.6.45\r\n", "").unwrap(), "VERSION 1.6.45");
        assert_eq!(asked("CLIENT_ERROR unauthenticated\r\n", "").unwrap(), "CLIENT_ERROR unauthenticated");
        assert_eq!(asked("HTTP/1.1 200 OK\r\n\r\nok", "/readyz").unwrap(), "HTTP/1.1 200 OK");
        assert!(
            asked("HTTP/1.1 503 Service Unavailable\r\n\r\n", "/readyz")
                .unwrap_err()
                .ends_with("/readyz: HTTP/1.1 503 Service Unavailable")
        );
        assert!(asked("", "").unwrap_err().ends_with("it has closed the connection"));
        assert!(
            ping("/no/such/socket").is_err() && ping("nowhere").unwrap_err().contains("must be host:port")
        );
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = mute.local_addr().unwrap().to_string();
        assert_eq!(ping(&target).unwrap_err(), format!("{target}: no answer within 2 s"));
        let own: IpAddr = own_address().trim_matches(['[', ']']).parse().unwrap();
        assert!(!own.is_unspecified(), "{own}");
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(ping(&closed.to_string()).unwrap_err().contains("refused"));
    }
}
