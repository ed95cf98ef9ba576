//! `stats conns`: listeners and connections, by descriptor.

use std::net::SocketAddr;
use std::ops::Bound;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_engine::Now;

use super::definition::{Row, Sink, Unit, Value, gauge, put_all, text};
use crate::connection::info::{ConnectionInfo, PeerName};
use crate::listen::Address;
use crate::listen::ListenerInfo;
use crate::shared::Shared;

/// Connections noted while their list is locked.
const NOTED: usize = 64;

/// What a listener's lines are read from.
pub(super) struct Listener {
    info: Arc<ListenerInfo>,
    now: Now,
}

/// What a connection's lines are read from. Not the connection itself: its descriptor stays open for as long as that is kept.
pub(super) struct ConnectionView {
    fd: i32,
    peer: Option<SocketAddr>,
    listener: Arc<ListenerInfo>,
    state: &'static str,
    idle: u32,
}

/// Listeners first. Connections are noted in pieces, so that none waits for long to open or to close.
pub(super) fn collect(shared: &Shared, now: Now, sink: &mut dyn Sink) {
    let listeners = shared.listeners.lock().expect("nobody panics with it held").clone();
    for info in listeners {
        let fd = info.fd;
        put_all(LISTENERS, &[&fd], shared, &Listener { info, now }, sink);
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

/// Of a listener.
pub(super) static LISTENERS: &[Row<Listener>] = &[
    text("addr", "The client's address; of a listener its own.", |_, one: &Listener| {
        Some(Value::text(one.info.name()))
    })
    .labelled(PREFIX, LABELS),
    text("state", STATES, |_, _: &Listener| Some(Value::text("conn_listening"))).labelled(PREFIX, LABELS),
    gauge("secs_since_last_cmd", Unit::Seconds, IDLE, |_, one: &Listener| {
        one.now.second.saturating_sub(2).into()
    })
    .labelled(PREFIX, LABELS),
];

const STATES: &str = "conn_listening; conn_read: waits for a command; conn_parse_cmd: executes one (the connection that asks); \
     conn_nread: waits for the rest of a data block; conn_swallow: drops the rest of a refused one; conn_mwrite: its client has \
     to read first; conn_watch: watches; conn_waiting: a request is held.";
const IDLE: &str = "Seconds since the last command; of a listener since the start.";

/// Of a connection.
pub(super) static CONNECTIONS: &[Row<ConnectionView>] = &[
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
