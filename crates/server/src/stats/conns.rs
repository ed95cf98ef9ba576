//! `stats conns`: listeners and connections, by descriptor.

use std::net::SocketAddr;
use std::ops::Bound;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_engine::Now;

use super::definition::{Sink, StatRow, Unit, Value, gauge, put_all, text};
use crate::connection::info::{ConnectionInfo, PeerName};
use crate::listen::Address;
use crate::listen::ListenerInfo;
use crate::shared::Shared;

/// The most connections that are noted while their list is locked.
const NOTED: usize = 64;

/// The source of a listener's lines.
pub(super) struct ListenerStats {
    info: Arc<ListenerInfo>,
    now: Now,
}

/// The source of a connection's lines. It is not the connection itself, whose descriptor would stay open with
/// it.
pub(super) struct ConnectionView {
    fd: i32,
    peer: Option<SocketAddr>,
    listener: Arc<ListenerInfo>,
    state: &'static str,
    idle: u32,
}

/// Listeners come first. Connections are noted in pieces, so that opening and closing connections does not
/// wait for long.
pub(super) fn collect(shared: &Shared, now: Now, sink: &mut dyn Sink) {
    let listeners = shared.listeners.lock().expect("nobody panics with it held").clone();
    for info in listeners {
        let fd = info.fd;
        put_all(LISTENERS, &[&fd], shared, &ListenerStats { info, now }, sink);
    }
    let mut last = Bound::Unbounded;
    loop {
        let noted: Vec<ConnectionView> = {
            let all = shared.connections.lock().expect("nobody panics with it held");
            all.range((last, Bound::Unbounded))
                .take(NOTED)
                .map(|(_, info)| ConnectionView::note(info, now))
                .collect()
        };
        let Some(end) = noted.last() else { return };
        last = Bound::Excluded(end.fd);
        for connection in &noted {
            put_all(CONNECTIONS, &[&connection.fd], shared, connection, sink);
        }
    }
}

impl ConnectionView {
    fn note(info: &ConnectionInfo, now: Now) -> Self {
        Self {
            fd: info.fd.as_raw_fd(),
            peer: info.address,
            listener: Arc::clone(&info.listener),
            state: info.state(),
            idle: now.second.saturating_sub(info.last_command.load(Relaxed)),
        }
    }
}

const PREFIX: &str = "{fd}:";
const LABELS: &[&str] = &["fd"];

/// The lines of a listener.
pub(super) static LISTENERS: &[StatRow<ListenerStats>] = &[
    text("addr", "The client's address; of a listener its own.", |_, one: &ListenerStats| {
        Some(Value::text(one.info.name()))
    })
    .labelled(PREFIX, LABELS),
    text("state", STATES, |_, _: &ListenerStats| Some(Value::text("conn_listening")))
        .labelled(PREFIX, LABELS),
    gauge("secs_since_last_cmd", Unit::Seconds, IDLE, |_, one: &ListenerStats| {
        one.now.second.saturating_sub(2).into()
    })
    .labelled(PREFIX, LABELS),
];

const STATES: &str = "conn_listening; conn_read: waits for a command; conn_parse_cmd: executes one (the connection that asks); \
     conn_nread: waits for the rest of a data block; conn_swallow: drops the rest of a refused one; conn_mwrite: its client has \
     to read first; conn_watch: watches; conn_waiting: a request is held.";
const IDLE: &str = "Seconds since the last command; of a listener since the start.";

/// The lines of a connection.
pub(super) static CONNECTIONS: &[StatRow<ConnectionView>] = &[
    text("addr", "The client's address; of a listener its own.", |_, one: &ConnectionView| {
        let listener = &one.listener.address;
        let prefix = if matches!(listener, Address::Unix(_)) { "" } else { "tcp:" };
        Some(Value::text(format!("{prefix}{}", PeerName { address: one.peer, listener })))
    })
    .labelled(PREFIX, LABELS),
    text("listen_addr", "The address at which the client came in.", |_, one: &ConnectionView| {
        Some(Value::text(one.listener.name()))
    })
    .labelled(PREFIX, LABELS)
    .when("for a connection"),
    text("state", STATES, |_, one: &ConnectionView| Some(Value::text(one.state))).labelled(PREFIX, LABELS),
    gauge("secs_since_last_cmd", Unit::Seconds, IDLE, |_, one: &ConnectionView| one.idle.into())
        .labelled(PREFIX, LABELS),
];
