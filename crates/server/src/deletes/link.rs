//! The connection to one memcached server: sends waiting commands in batches, and reads the replies.
//!
//! It uses classic commands with replies, which every server and proxy knows. A server that does not answer
//! is tried again without a limit of time.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use cattlegrid_config::{MemcachedAddress, MemcachedServer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::TaskContext;
use super::queues::ServerReply;
use crate::log;
use crate::time::nanos;

/// The most commands in a batch: 50 KB with short keys, which the buffers of two sockets hold.
const BATCH: usize = 2000;

/// The longest time for connecting, and between two pieces of a reply.
const PATIENCE: Duration = Duration::from_secs(2);

/// The shortest pause before a server is tried again; each further pause is twice as long, up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The most bytes of replies in one read.
const READ_BYTES: usize = 32 << 10;

/// The longest line of a reply, in bytes.
const LINE_MAX: usize = 2048;

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The health of a server.
struct Health {
    /// Since when the server does not answer, in nanoseconds.
    down_since: Option<u64>,
    pause: Duration,
    /// Whether the failed connection had answered before: it may have been closed while it was idle.
    had_answered: bool,
}

/// Sends a server its commands, for ever.
pub(super) async fn run(shared: Rc<TaskContext>, place: usize) {
    let shared = &*shared;
    let mut health = Health { down_since: None, pause: PAUSE_MIN, had_answered: false };
    loop {
        let reason = match connect(&shared.servers[place]).await {
            Ok(stream) => talk(shared, place, stream, &mut health).await,
            Err(error) => error.to_string(),
        };
        shared.queues.borrow_mut().failed(place);
        shared.queues.borrow_mut().set_up(place, false);
        if std::mem::take(&mut health.had_answered) {
            continue;
        }
        let server = &shared.servers[place].name;
        if health.down_since.is_none() {
            health.down_since = Some(nanos());
            log::warning(format_args!(
                "server {server}: does not answer, what it must delete waits: {reason}"
            ));
        }
        tokio::time::sleep(health.pause).await;
        health.pause = (health.pause * 2).min(PAUSE_MAX);
    }
}

/// Sends and receives on one connection until it ends; returns the error.
async fn talk(
    shared: &TaskContext,
    place: usize,
    mut stream: Box<dyn Stream>,
    health: &mut Health,
) -> String {
    let mut lines = LineReader::default();
    loop {
        let text = shared.queues.borrow_mut().take(place, BATCH);
        if text.is_empty() {
            // Missing deletes are repeated when the server answers.
            let looks = shared.queues.borrow().needs_check(place);
            if looks {
                match lines.ask(&mut stream, b"version\r\n").await {
                    Ok(()) => answered(shared, place, health),
                    Err(reason) => return reason,
                }
            }
            shared.wakes[place].notified().await;
            continue;
        }
        if let Err(reason) = lines.send(&mut stream, &text).await {
            return reason;
        }
        while shared.queues.borrow().sent(place) > 0 {
            let line = match lines.next(&mut stream).await {
                Ok(line) => line,
                Err(reason) => return reason,
            };
            let answer = shared.queues.borrow_mut().answered(place, &line);
            if let ServerReply::Failed { reply } = answer {
                health.had_answered = false;
                return format!("it answers {reply}");
            }
            shared.note(place, answer);
            answered(shared, place, health);
        }
        shared.done.notify_one();
    }
}

/// Notes that the server answers.
fn answered(shared: &TaskContext, place: usize, health: &mut Health) {
    shared.queues.borrow_mut().set_up(place, true);
    (health.had_answered, health.pause) = (true, PAUSE_MIN);
    if let Some(since) = health.down_since.take() {
        let seconds = nanos().saturating_sub(since) / 1_000_000_000;
        let server = &shared.servers[place].name;
        let waited = shared.queues.borrow().backlog(place);
        log::notice(format_args!(
            "server {server}: answers again, after {seconds} s; {waited} commands have waited"
        ));
    }
}

async fn connect(server: &MemcachedServer) -> io::Result<Box<dyn Stream>> {
    let connecting = async {
        Ok(match &server.place {
            MemcachedAddress::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream) as Box<dyn Stream>
            }
            MemcachedAddress::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    };
    let timed_out =
        |_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {PATIENCE:?}")));
    tokio::time::timeout(PATIENCE, connecting).await.unwrap_or_else(timed_out)
}

/// Splits replies into lines.
#[derive(Default)]
struct LineReader {
    input: Vec<u8>,
    /// The position up to which `input` was returned.
    at: usize,
}

impl LineReader {
    async fn send(&self, stream: &mut Box<dyn Stream>, text: &[u8]) -> Result<(), String> {
        match tokio::time::timeout(PATIENCE, stream.write_all(text)).await {
            Ok(written) => written.map_err(|error| error.to_string()),
            Err(_) => Err(format!("it takes nothing for {PATIENCE:?}")),
        }
    }

    async fn ask(&mut self, stream: &mut Box<dyn Stream>, text: &[u8]) -> Result<(), String> {
        self.send(stream, text).await?;
        self.next(stream).await.map(drop)
    }

    async fn next(&mut self, stream: &mut Box<dyn Stream>) -> Result<Vec<u8>, String> {
        loop {
            if let Some(len) = memchr::memchr(b'\n', &self.input[self.at..]) {
                let line = &self.input[self.at..self.at + len];
                self.at += len + 1;
                return Ok(line.strip_suffix(b"\r").unwrap_or(line).to_vec());
            }
            self.input.drain(..std::mem::take(&mut self.at));
            if self.input.len() > LINE_MAX {
                return Err("a line of its reply has no end".to_owned());
            }
            self.input.reserve(READ_BYTES);
            match tokio::time::timeout(PATIENCE, stream.read_buf(&mut self.input)).await {
                Ok(Ok(0)) => return Err("it closed the connection".to_owned()),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => return Err(format!("no reply within {PATIENCE:?}")),
            }
        }
    }
}
