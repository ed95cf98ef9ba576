//! Reads the lines of `watch` on a thread of its own, so that the server need not wait for their handling.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::link::{ServerStream, WatchedServer, first_line, is_timeout};

/// Most buffers of [`PIECE_MAX`] bytes that wait. When they are full nothing is read, and the server leaves
/// lines out.
const PIECES: usize = 256;
const PIECE_MAX: usize = 64 << 10;
/// Longest line in bytes: keys have 250 bytes, three times as many when escaped.
const LINE_MAX: usize = 4096;
/// Pause between two checks whether the thread should end.
const LOOK: Duration = Duration::from_millis(200);

/// A connection that watches.
pub(super) struct Tap {
    pieces: Receiver<io::Result<Vec<u8>>>,
    stop: Arc<AtomicBool>,
    /// The part of a line whose end has not come.
    rest: Vec<u8>,
    /// Whether the server shows deletes.
    pub(super) shows_deletes: bool,
}

impl Tap {
    /// Watches look-ups, stores, and deletes if the server shows them (memcached 1.6.45 does, 1.6.18 does
    /// not). `evictions`: also evictions.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses watchers.
    pub(super) fn open(server: &WatchedServer, evictions: bool) -> io::Result<Self> {
        let extra = if evictions { " evictions" } else { "" };
        let mut answer = String::new();
        for deletions in [" deletions", ""] {
            let mut stream = server.connect()?;
            stream.write_all(format!("watch fetchers mutations{extra}{deletions}\r\n").as_bytes())?;
            stream.flush()?;
            answer = first_line(&mut stream)?;
            if answer == "OK" {
                let (sender, pieces) = sync_channel(PIECES);
                let stop = Arc::new(AtomicBool::new(false));
                let asked = Arc::clone(&stop);
                std::thread::Builder::new()
                    .name("tap".to_owned())
                    .spawn(move || read(stream, &sender, &asked))?;
                return Ok(Self { pieces, stop, rest: Vec::new(), shows_deletes: !deletions.is_empty() });
            }
        }
        Err(io::Error::other(format!("it does not let itself be watched: {answer}")))
    }

    /// Passes the lines that come within this time to `note`.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn lines(&mut self, wait: Duration, mut note: impl FnMut(&str)) -> io::Result<()> {
        let mut piece = match self.pieces.recv_timeout(wait) {
            Ok(piece) => piece?,
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the server has closed the connection"));
            }
        };
        for _ in 0..PIECES {
            self.rest.append(&mut piece);
            let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in self.rest[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                note(&String::from_utf8_lossy(line));
            }
            self.rest.drain(..end);
            if self.rest.len() > LINE_MAX {
                return Err(io::Error::other("it sends a line without an end"));
            }
            match self.pieces.try_recv() {
                Ok(next) => piece = next?,
                Err(_) => break,
            }
        }
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn read(mut stream: ServerStream, sender: &SyncSender<io::Result<Vec<u8>>>, stop: &AtomicBool) {
    let mut buffer = vec![0; PIECE_MAX];
    let mut result = stream.limit(LOOK);
    while result.is_ok() && !stop.load(Relaxed) {
        result = match stream.read(&mut buffer) {
            Ok(0) => {
                Err(io::Error::other("the server has closed the connection: this is what was seen before"))
            }
            Ok(count) => {
                // The receiver is gone.
                if sender.send(Ok(buffer[..count].to_vec())).is_err() {
                    return;
                }
                Ok(())
            }
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        };
    }
    if let Err(error) = result {
        sender.send(Err(error)).unwrap_or_default();
    }
}
