//! A session at one end of a pair of sockets, and a client of rustls at the other.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cattlegrid_store::{HugeValue, Memory};
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, SupportedProtocolVersion};

use super::*;
use crate::tls::TlsAcceptor;
use crate::tls::tests::{BOTH, TestCertificates};

/// The most plain bytes of a piece in a server.
const MOST: usize = 64 << 10;

struct Pair {
    server: TlsSession,
    server_end: UnixStream,
    client: ClientConnection,
    client_end: UnixStream,
    outbox: Outbox,
    /// Bytes that the server and the client have decrypted.
    at_server: Vec<u8>,
    at_client: Vec<u8>,
}

impl Pair {
    fn new(versions: &[&'static SupportedProtocolVersion]) -> Self {
        let files = TestCertificates::new();
        let acceptor = TlsAcceptor::new(&files.settings()).unwrap();
        Self::with(&acceptor, &Arc::new(files.client(None, versions)))
    }

    fn with(acceptor: &TlsAcceptor, config: &Arc<ClientConfig>) -> Self {
        let (server_end, client_end) = UnixStream::pair().unwrap();
        server_end.set_nonblocking(true).unwrap();
        client_end.set_nonblocking(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(config), name).unwrap();
        client.set_buffer_limit(None);
        let mut pair = Self {
            server: TlsSession::new(acceptor.new_connection().unwrap()),
            server_end,
            client,
            client_end,
            outbox: Outbox::default(),
            at_server: Vec::new(),
            at_client: Vec::new(),
        };
        while pair.client.is_handshaking() || pair.server.is_handshaking() {
            pair.client_speaks().unwrap();
            pair.flush().unwrap();
            pair.client_reads();
        }
        pair.idle();
        pair
    }

    /// Sends the client's bytes, as far as there is room, and lets the server decrypt them.
    fn client_speaks(&mut self) -> Result<(), rustls::Error> {
        loop {
            let mut moved = 0;
            while let Ok(n @ 1..) = self.client.write_tls(&mut self.client_end) {
                moved += n;
            }
            if self.serve(usize::MAX / 2)? == 0 && moved == 0 {
                return Ok(());
            }
        }
    }

    /// Lets the server receive once, at most `most` bytes.
    fn serve(&mut self, most: usize) -> Result<usize, rustls::Error> {
        let Ok(received @ 1..) = self.server.receive(&self.server_end, most) else { return Ok(0) };
        let at_server = &mut self.at_server;
        self.server.decrypt(received, |plain| at_server.extend_from_slice(plain))?;
        Ok(received)
    }

    fn send(&mut self, out: &mut Output, most: usize) -> io::Result<usize> {
        self.server.send(&self.server_end, &mut self.outbox, out, most)
    }

    fn flush(&mut self) -> io::Result<usize> {
        self.send(&mut Output::default(), MOST)
    }

    /// Lets the client read all available bytes.
    fn client_reads(&mut self) {
        while let Ok(1..) = self.client.read_tls(&mut self.client_end) {
            self.client.process_new_packets().unwrap();
            let mut plain = [0; 8 << 10];
            while let Ok(n @ 1..) = self.client.reader().read(&mut plain) {
                self.at_client.extend_from_slice(&plain[..n]);
            }
        }
    }

    /// Exchanges bytes until none are left; then the server keeps none.
    fn idle(&mut self) {
        while self.flush().unwrap() > 0 || !self.server.is_empty() || !self.outbox.is_empty() {
            self.client_reads();
        }
        self.client_reads();
        assert_eq!(
            (self.server.kept_bytes(), self.server.raw_bytes()),
            (0, 0),
            "an idle connection has no buffer"
        );
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Lengths around the limits of records and of pieces.
fn lengths() -> impl Iterator<Item = usize> {
    let around = |edge: usize| [edge - 1, edge, edge + 1];
    [1, 2].into_iter().chain([RECORD, 2 * RECORD, MOST, MOST + RECORD, 5 * MOST].into_iter().flat_map(around))
}

fn bytes(bytes: Vec<u8>) -> Output {
    Output { bytes, huge: Vec::new() }
}

#[test]
fn lengths_around_records_in_both_directions() {
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let mut pair = Pair::new(versions);
        for len in lengths() {
            pair.client.writer().write_all(&pattern(len)).unwrap();
            pair.client_speaks().unwrap();
            assert!(pair.at_server == pattern(len), "{len} to the server");
            pair.at_server.clear();
            pair.send(&mut bytes(pattern(len)), MOST).unwrap();
            pair.idle();
            assert!(pair.at_client == pattern(len), "{len} to the client");
            pair.at_client.clear();
        }
    }
}

#[test]
fn values_in_pages_between_short_pieces() {
    let memory = Memory::new(8 << 20).unwrap();
    let mut pair = Pair::new(BOTH);
    for (number, len) in lengths().enumerate() {
        let huge = HugeValue::new(&memory, &[&pattern(len)]).unwrap();
        let begin = b"VALUE k 0 1\r\n";
        let all = [begin, &pattern(len)[..], b"\r\n", &pattern(len), b"\r\nEND\r\n"].concat();
        let mut out = bytes([&begin[..], b"\r\n\r\nEND\r\n"].concat());
        out.huge = vec![(begin.len(), Arc::clone(&huge)), (begin.len() + 2, huge)];
        // Pieces of several sizes, the smallest shorter than a record.
        let most = [MOST, RECORD, RECORD - 1, RECORD + 1, 1000][number % 5];
        pair.send(&mut out, most).unwrap();
        while !pair.server.is_empty() || !pair.outbox.is_empty() {
            pair.client_reads();
            pair.send(&mut Output::default(), most).unwrap();
        }
        pair.idle();
        assert!(pair.at_client == all, "{len} in pieces of {most}");
        pair.at_client.clear();
    }
}

#[test]
fn records_that_arrive_a_few_bytes_at_a_time() {
    for most in [1, 4, 5, 6, 17, 1000, RECORD + 21, RECORD + 22, RECORD + 23] {
        let mut pair = Pair::new(&[&TLS13]);
        let len = if most < 1000 { 300 } else { 3 * RECORD };
        pair.client.writer().write_all(&pattern(len)).unwrap();
        loop {
            let written = pair.client.write_tls(&mut pair.client_end).unwrap_or(0);
            if pair.serve(most).unwrap() == 0 && written == 0 {
                break;
            }
            assert!(pair.server.raw_bytes() <= 2 * (RECORD + RECORD_EXTRA), "more than a record is kept");
        }
        assert!(pair.at_server == pattern(len), "{most}");
        pair.idle();
    }
}

#[test]
fn a_client_that_does_not_read_has_one_piece() {
    let mut pair = Pair::new(BOTH);
    for round in 0..40 {
        pair.send(&mut bytes(pattern(MOST + 1)), MOST).unwrap();
        let most = MOST + 8 * RECORD_EXTRA;
        assert!(pair.server.kept_bytes() <= most, "{} in round {round}", pair.server.kept_bytes());
    }
    assert!(!pair.server.is_empty() && !pair.outbox.is_empty());
    pair.idle();
    let all: Vec<u8> = (0..40).flat_map(|_| pattern(MOST + 1)).collect();
    assert!(pair.at_client == all);
}

#[test]
fn keys_are_updated_by_the_client_while_replies_wait() {
    let mut pair = Pair::new(&[&TLS13]);
    for round in 0..10 {
        pair.client.refresh_traffic_keys().unwrap();
        pair.client.writer().write_all(b"get k\r\n").unwrap();
        pair.client_speaks().unwrap();
        pair.send(&mut bytes(pattern(1000)), MOST).unwrap();
        pair.idle();
        assert_eq!((pair.at_server.len(), pair.at_client.len()), ((round + 1) * 7, (round + 1) * 1000));
    }
}

#[test]
fn a_client_that_has_said_the_end_gets_its_replies() {
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let mut pair = Pair::new(versions);
        pair.client.writer().write_all(b"get k\r\n").unwrap();
        pair.client.send_close_notify();
        assert!(!pair.server.has_ended());
        pair.client_speaks().unwrap();
        assert!(pair.server.has_ended() && pair.at_server == b"get k\r\n");
        // Bytes after the end are ignored.
        pair.client_end.write_all(&[0; 100]).unwrap();
        pair.serve(1000).unwrap();
        pair.send(&mut bytes(pattern(3 * MOST)), MOST).unwrap();
        pair.idle();
        assert_eq!(pair.at_client.len(), 3 * MOST);
        pair.server.close(&pair.server_end);
        pair.client_reads();
        assert!(!pair.client.wants_read(), "it was told of the end");
    }
}

#[test]
fn the_end_is_not_said_amid_a_piece() {
    let mut pair = Pair::new(BOTH);
    pair.send(&mut bytes(pattern(5 << 20)), MOST).unwrap();
    pair.server.close(&pair.server_end);
    pair.client_reads();
    assert!(pair.client.wants_read() && pair.at_client.len() < 5 << 20);
}

#[test]
fn what_is_no_record_ends_it_with_an_alert() {
    for versions in [&[&TLS13][..], &[&TLS12]] {
        for garbage in [&[0xff; 40][..], &[23, 3, 3, 0, 30], &[23, 3, 3, 0xff, 0xff, 0]] {
            let mut pair = Pair::new(versions);
            let whole = [garbage, &[7; 60]].concat();
            pair.client_end.write_all(&whole).unwrap();
            pair.serve(1000).unwrap_err();
            // Replies to earlier requests are not sent after the alert.
            pair.send(&mut bytes(pattern(1000)), MOST).unwrap();
            assert!(pair.server.is_empty() && pair.outbox.is_empty());
            while let Ok(1..) = pair.client.read_tls(&mut pair.client_end) {}
            let told = pair.client.process_new_packets();
            assert!(matches!(told, Err(rustls::Error::AlertReceived(_))), "{told:?}");
            pair.server.close(&pair.server_end);
            assert_eq!(pair.serve(1000).unwrap(), 0);
        }
    }
}

#[test]
fn a_message_of_a_handshake_is_bounded() {
    let files = TestCertificates::new();
    let acceptor = TlsAcceptor::new(&files.settings()).unwrap();
    let (server_end, mut client_end) = UnixStream::pair().unwrap();
    server_end.set_nonblocking(true).unwrap();
    let mut server = TlsSession::new(acceptor.new_connection().unwrap());
    let mut sent = 0;
    // A ClientHello of 16 MiB, in records of 16 KiB.
    let mut record = vec![22, 3, 1, 0x40, 0];
    record.extend_from_slice(&[1, 0xff, 0xff, 0xff]);
    record.resize(5 + RECORD, 0);
    let error = loop {
        client_end.write_all(&record).unwrap();
        sent += record.len();
        assert!(sent < 1 << 20, "1 MiB is kept");
        let received = server.receive(&server_end, usize::MAX / 2).unwrap();
        if let Err(error) = server.decrypt(received, |_| panic!("nothing is decrypted")) {
            break error;
        }
        assert!(server.raw_bytes() <= RAW_BYTES);
        record[5..9].fill(0);
    };
    assert!(sent <= RAW_BYTES + RECORD, "{error} after {sent}");
    assert_eq!(server.raw_bytes(), 0);
}

#[test]
fn a_ticket_is_good_until_the_certificates_are_read_again() {
    let files = TestCertificates::new();
    let acceptor =
        TlsAcceptor::new(&cattlegrid_config::TlsSettings { session_cache: true, ..files.settings() })
            .unwrap();
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let client = Arc::new(files.client(None, versions));
        let kind = || Pair::with(&acceptor, &client).client.handshake_kind().unwrap();
        assert_eq!(kind(), rustls::HandshakeKind::Full);
        assert_eq!(kind(), rustls::HandshakeKind::Resumed);
        acceptor.reload().unwrap();
        assert_eq!(kind(), rustls::HandshakeKind::Full);
        assert_eq!(kind(), rustls::HandshakeKind::Resumed);
    }
}
