//! The stream of the dashboard: a server-sent event each second, made once for all readers.
//!
//! ```text
//!   event: full    a snapshot: the first event of a stream
//!   event: patch   what has changed since the event before, as a merge patch (RFC 7396)
//!   event: end     why the stream ends: draining, reload
//! ```
//! Each event is compressed once, as blocks of deflate that end on a byte boundary and do not refer to
//! earlier bytes. So any sequence of them after the header of a gzip file is a valid gzip file.
//!
//! # Invariants
//! * No snapshot is made while there is no reader.
//! * A reader that is [`KEPT`] events behind is disconnected.
//! * A stream ends when the token is read again, and when the server drains.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use flate2::{Compress, Compression, Crc, FlushCompress};
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use serde_json::Value as Json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::connections::ConnectionSignals;
use super::pages::Pages;
use super::{Stage, snapshot};

/// The most streams at once.
pub(super) const STREAMS: usize = 64;
/// The time between two events.
const EVERY: Duration = Duration::from_secs(1);
/// The most events that wait for a reader, besides those in its connection's buffer.
const KEPT: usize = 8;

/// An event in its encoded forms.
#[derive(Debug, Clone)]
struct EncodedEvent {
    plain: Bytes,
    packed: Bytes,
}

impl EncodedEvent {
    fn new(kind: &str, data: &str) -> Self {
        let plain = format!("event: {kind}\ndata: {data}\n\n");
        Self { packed: deflated(plain.as_bytes()).into(), plain: plain.into() }
    }
}

/// Compresses bytes to blocks of deflate that others may follow.
fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut compress = Compress::new(Compression::new(5), false);
    let mut packed = Vec::with_capacity(bytes.len() / 3 + 64);
    loop {
        let before = compress.total_in() as usize;
        let state = compress.compress_vec(&bytes[before..], &mut packed, FlushCompress::Sync);
        // Unused room in the buffer means that the output is complete.
        if state.is_err() || (compress.total_in() as usize == bytes.len() && packed.len() < packed.capacity())
        {
            return packed;
        }
        packed.reserve(packed.capacity().max(64));
    }
}

/// The readers and the last snapshot.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<EventsState>);

#[derive(Debug, Default)]
struct EventsState {
    readers: Vec<EventReader>,
    /// Whether a task makes snapshots.
    is_running: bool,
    /// The snapshot that all readers have; null: none.
    snapshot: Json,
    /// The same snapshot as an event; made for the first new reader.
    full: Option<EncodedEvent>,
}

#[derive(Debug)]
struct EventReader {
    to: mpsc::Sender<EncodedEvent>,
    line: Arc<ConnectionSignals>,
}

impl Events {
    fn state(&self) -> MutexGuard<'_, EventsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventsState {
    fn send(&mut self, event: &EncodedEvent) {
        self.readers.retain(|reader| match reader.to.try_send(event.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                reader.line.cut();
                false
            }
        });
    }

    /// Sends a new snapshot, or its difference to the last, to all readers.
    fn publish(&mut self, snapshot: Json) {
        let event = if self.snapshot.is_null() {
            EncodedEvent::new("full", &snapshot.to_string())
        } else {
            let patch = snapshot::patch(&self.snapshot, &snapshot);
            EncodedEvent::new("patch", &patch.map_or_else(|| "{}".to_owned(), |patch| patch.to_string()))
        };
        (self.snapshot, self.full) = (snapshot, None);
        self.send(&event);
    }

    /// Ends all streams.
    fn end(&mut self, why: &str) {
        self.send(&EncodedEvent::new("end", why));
        *self = Self::default();
    }
}

/// Opens a stream for the connection `line`; None: there are [`STREAMS`] already.
pub(super) fn subscribe(
    pages: &Arc<Pages>,
    line: &Arc<ConnectionSignals>,
    packed: bool,
) -> Option<ResponseBody> {
    let mut state = pages.events.state();
    state.readers.retain(|reader| !reader.to.is_closed());
    if state.readers.len() >= STREAMS {
        return None;
    }
    let (to, from) = mpsc::channel(KEPT);
    line.stream();
    if !state.is_running {
        state.is_running = true;
        tokio::spawn(run(Arc::clone(pages)));
    } else if !state.snapshot.is_null() {
        let full =
            state.full.take().unwrap_or_else(|| EncodedEvent::new("full", &state.snapshot.to_string()));
        state.full = Some(full.clone());
        // The channel is new, so that there is room.
        to.try_send(full).unwrap_or_default();
    }
    state.readers.push(EventReader { to, line: Arc::clone(line) });
    let gzip = packed.then(Gzip::default);
    Some(ResponseBody::EventStream(EventStream { from, gzip, is_over: false }))
}

/// Makes snapshots until all readers have gone.
async fn run(pages: Arc<Pages>) {
    let generation = pages.site.secrets.generation();
    loop {
        let next = Instant::now() + EVERY;
        let site = pages.site.now();
        match site {
            Stage::Serving(ref shared) if !site.is_leaving() => {
                let make = || snapshot::of(shared, shared.now_at(shared.clock.now()));
                let snapshot = pages.paced(make).await;
                let mut state = pages.events.state();
                if pages.site.secrets.generation() != generation {
                    return state.end("reload");
                }
                state.publish(snapshot);
            }
            _ => return pages.events.state().end("draining"),
        }
        drop(site);
        sleep_until(next).await;
        let mut state = pages.events.state();
        state.readers.retain(|reader| !reader.to.is_closed());
        if state.readers.is_empty() {
            *state = EventsState::default();
            return;
        }
    }
}

/// The body of a reply.
pub(super) enum ResponseBody {
    Whole(Full<Bytes>),
    EventStream(EventStream),
}

/// The stream of events to one reader.
pub(super) struct EventStream {
    from: mpsc::Receiver<EncodedEvent>,
    gzip: Option<Gzip>,
    is_over: bool,
}

/// A gzip file in progress.
#[derive(Default)]
struct Gzip {
    is_begun: bool,
    crc: Crc,
}

impl Gzip {
    const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    /// The last block of a gzip file, which is empty.
    const LAST: [u8; 2] = [3, 0];

    fn event(&mut self, event: &EncodedEvent) -> Bytes {
        self.crc.update(&event.plain);
        if self.is_begun {
            return event.packed.clone();
        }
        self.is_begun = true;
        [&Self::HEAD, &*event.packed].concat().into()
    }

    fn end(&self) -> Bytes {
        let head: &[u8] = if self.is_begun { &[] } else { &Self::HEAD };
        [head, &Self::LAST, &self.crc.sum().to_le_bytes(), &self.crc.amount().to_le_bytes()].concat().into()
    }
}

impl<B: Into<Bytes>> From<B> for ResponseBody {
    fn from(bytes: B) -> Self {
        Self::Whole(Full::new(bytes.into()))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let stream = match self.get_mut() {
            Self::Whole(whole) => return Pin::new(whole).poll_frame(cx),
            Self::EventStream(stream) => stream,
        };
        if stream.is_over {
            return Poll::Ready(None);
        }
        let bytes = if let Some(event) = std::task::ready!(stream.from.poll_recv(cx)) {
            stream.gzip.as_mut().map_or_else(|| event.plain.clone(), |gzip| gzip.event(&event))
        } else {
            stream.is_over = true;
            let Some(gzip) = &stream.gzip else { return Poll::Ready(None) };
            gzip.end()
        };
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::EventStream(stream) => stream.is_over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::EventStream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    /// Each event can be read when it has come, and the whole is a gzip file.
    #[test]
    fn events_that_are_compressed_once_are_one_gzip_file() {
        let numbers: Vec<_> = (0..20_000_u32).map(|n| n.to_string()).collect();
        let texts = ["{}".to_owned(), "x".repeat(100_000), numbers.join(",")];
        let events = texts.map(|text| EncodedEvent::new("patch", &text));
        let mut gzip = Gzip::default();
        let (mut file, mut plain) = (Vec::new(), Vec::new());
        for event in events.iter().chain(&events[1..]) {
            file.extend_from_slice(&gzip.event(event));
            plain.extend_from_slice(&event.plain);
            let mut so_far = vec![0; plain.len()];
            GzDecoder::new(&file[..]).read_exact(&mut so_far).unwrap();
            assert!(so_far == plain);
        }
        file.extend_from_slice(&gzip.end());
        let mut all = Vec::new();
        GzDecoder::new(&file[..]).read_to_end(&mut all).unwrap();
        assert!(all == plain);
        let mut nothing = Vec::new();
        GzDecoder::new(&Gzip::default().end()[..]).read_to_end(&mut nothing).unwrap();
        assert!(nothing.is_empty());
    }

    #[test]
    fn a_reader_that_is_behind_goes() {
        let (to, mut from) = mpsc::channel(KEPT);
        let mut state =
            EventsState { readers: vec![EventReader { to, line: Arc::default() }], ..EventsState::default() };
        for n in 0..KEPT {
            state.publish(serde_json::json!({ "n": n }));
        }
        assert_eq!(state.readers.len(), 1);
        state.publish(serde_json::json!({ "n": "one more" }));
        assert!(state.readers.is_empty());
        assert!(from.try_recv().unwrap().plain.starts_with(b"event: full\ndata: {\"n\":0}\n\n"));
        assert!(from.try_recv().unwrap().plain.starts_with(b"event: patch\ndata: {\"n\":1}\n\n"));
    }
}
