//! Properties of a stream of frames, for any bytes and for frames that were written by this crate.
//!
//! * No bytes make a decoder panic. A frame is complete or absent; a frame that is refused is refused by its
//!   header.
//! * The frames, and the error that ends them, are the same however the stream is split, and no receiver has
//!   to keep more than one frame of the agreed size.
//! * Frames are read as they were written, and a body that is accepted is accepted again when it is written
//!   again.

use cattlegrid_worker::List;
use cattlegrid_worker::control::{Control, MAX_TEXT};
use cattlegrid_worker::frame::{FLAG_RETRYABLE, FrameError, HEADER_LEN, Header, Kind, put_frame, take_frame};
use cattlegrid_worker::list::put_list;
use cattlegrid_worker::message::{ErrorBody, Hello, Init, JobBody};

use crate::draw::Draw;

/// A stream, how it is split, and the largest body that its receiver accepts.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    pub(crate) cuts: Vec<usize>,
    pub(crate) max_frame: u32,
}

impl Stream {
    /// Draws raw bytes, frames, or frames with faults.
    pub(crate) fn draw(bytes: &[u8]) -> Self {
        let mut draw = Draw::new(bytes);
        let max_frame = draw.choose(&[0, 1, 16, 300, 5_000, u32::MAX]);
        let cuts = (0..draw.below(24)).map(|_| draw.below(64)).collect();
        let mut bytes = Vec::new();
        match draw.below(4) {
            0 => bytes.extend_from_slice(draw.rest()),
            style => {
                while !draw.is_done() && bytes.len() < 1 << 16 {
                    put_drawn(&mut bytes, &mut draw, style == 1);
                }
            }
        }
        Self { bytes, cuts, max_frame }
    }

    /// Reads it with every decoder.
    pub(crate) fn check(&self) {
        let mut whole = Taken::default();
        whole.take(&self.bytes, self.max_frame);
        let mut split = Taken::default();
        let mut buffer = Vec::new();
        for part in self.parts() {
            buffer.extend_from_slice(part);
            let used = split.take(&buffer, self.max_frame);
            buffer.drain(..used);
            if split.error.is_some() {
                break;
            }
            assert!(buffer.len() < HEADER_LEN + self.max_frame as usize, "no more than a frame is kept");
        }
        assert_eq!(split, whole, "cut as {:?}", self.cuts);
        check_control(&self.bytes);
    }

    /// The parts in which it arrives.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        let mut lens = self.cuts.iter().copied().chain([1, 2, 3, 15, 16, 17]).cycle();
        std::iter::from_fn(move || {
            let len = lens.next()?.min(rest.len());
            let (part, after) = rest.split_at(len);
            let more = !rest.is_empty();
            rest = after;
            more.then_some(part)
        })
    }
}

/// Appends a frame; `faults`: now and then with bytes changed.
fn put_drawn(stream: &mut Vec<u8>, draw: &mut Draw<'_>, faults: bool) {
    let byte = draw.choose(&[1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25]);
    let kind = Kind::from_u8(byte).expect("the kinds of this version");
    let (flags, id) = (draw.choose(&[0, 1, 2, 3, 0xff]), draw.long());
    let mut body = Vec::new();
    let fixed = match kind {
        Kind::Hello | Kind::Init => 16,
        Kind::Job => 8,
        _ => 0,
    };
    body.extend_from_slice(draw.bytes(fixed));
    body.resize(fixed, 0);
    if draw.once_in(4) {
        let len = draw.below(300);
        body.extend_from_slice(draw.bytes(len));
    } else {
        let parts: Vec<&[u8]> = (0..draw.below(5))
            .map(|_| {
                let len = draw.choose(&[0, 1, 5, 127, 128, 200]);
                draw.bytes(len)
            })
            .collect();
        put_list(&mut body, &parts);
        let list = List::parse(&body[fixed..]).expect("a list that was just written");
        assert_eq!(list.iter().collect::<Vec<_>>(), parts);
    }
    let start = stream.len();
    put_frame(stream, kind, flags, id, |out| out.extend_from_slice(&body));
    let header = Header { len: body.len() as u32, kind, flags, id };
    assert_eq!(take_frame(&stream[start..], u32::MAX), Ok(Some((header, &body[..], &[][..]))));
    if faults && draw.once_in(8) {
        let at = start + draw.below(stream.len() - start);
        stream[at] = draw.byte();
    }
}

/// Frames of a stream, and the error that ended them; `None` for a stream that is cut off.
#[derive(Debug, Default, PartialEq)]
struct Taken {
    frames: Vec<(Header, Vec<u8>)>,
    error: Option<FrameError>,
}

impl Taken {
    /// Takes all whole frames off `bytes`; returns how many bytes they had.
    fn take(&mut self, bytes: &[u8], max_frame: u32) -> usize {
        let mut used = 0;
        while self.error.is_none() {
            match take_frame(&bytes[used..], max_frame) {
                Ok(Some((header, body, rest))) => {
                    assert!(header.len <= max_frame && body.len() == header.len as usize);
                    check_body(header, body);
                    used += HEADER_LEN + body.len();
                    assert_eq!(rest, &bytes[used..]);
                    self.frames.push((header, body.to_vec()));
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(bytes.len() - used >= HEADER_LEN, "only a whole header is judged");
                    assert!(!error.to_string().is_empty());
                    self.error = Some(error);
                }
            }
        }
        used
    }
}

/// The body of a frame, as its receiver reads it.
fn check_body(header: Header, body: &[u8]) {
    let again = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        let (header, body, rest) = take_frame(&out, u32::MAX).expect("written by us").expect("whole");
        assert!(rest.is_empty());
        (header, body.to_vec())
    };
    match header.kind {
        Kind::Hello => {
            if let Some(hello) = Hello::parse(body) {
                assert!(hello.sdk.len() <= 3 * body.len(), "a replaced byte becomes three");
                let (_, body) = again(&|out| hello.put(out));
                assert_eq!(Hello::parse(&body), Some(hello));
            }
        }
        Kind::Init => {
            if let Some(init) = Init::parse(body) {
                let (_, body) = again(&|out| init.put(out));
                assert_eq!(Init::parse(&body), Some(init));
            }
        }
        Kind::Job => {
            if let Some(job) = JobBody::parse(body) {
                let mut out = JobBody::prefix(job.deadline_ms, job.attempt).to_vec();
                put_list(&mut out, &job.args.iter().collect::<Vec<_>>());
                let again = JobBody::parse(&out).expect("written by us");
                assert_eq!((again.deadline_ms, again.attempt), (job.deadline_ms, job.attempt));
                assert!(again.args.iter().eq(job.args.iter()));
                check_list(job.args);
            }
        }
        Kind::Error => {
            if let Some(error) = ErrorBody::parse(header.flags, body) {
                let (own, body) = again(&|out| error.put(out, header.id));
                assert_eq!((own.kind, own.id), (header.kind, header.id));
                assert_eq!(own.flags & FLAG_RETRYABLE, header.flags & FLAG_RETRYABLE);
                assert_eq!(ErrorBody::parse(own.flags, &body), Some(error));
            }
        }
        _ => {
            if let Some(list) = List::parse(body) {
                check_list(list);
                let mut out = Vec::new();
                put_list(&mut out, &list.iter().collect::<Vec<_>>());
                assert!(out.len() <= body.len(), "no number is written longer than it was");
                let again = List::parse(&out).expect("written by us");
                assert!(again.iter().eq(list.iter()));
            }
        }
    }
}

/// A list has as many parts as it says, which lie in it.
fn check_list(list: List<'_>) {
    assert_eq!(list.iter().count(), list.len());
    assert_eq!(list.is_empty(), list.get(0).is_none());
    assert!(list.len() <= list.encoded_parts().len(), "each part has its length");
    assert_eq!(list.get(list.len()), None);
    assert_eq!(list.get(0), list.iter().next());
}

/// A datagram of a template.
fn check_control(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_TEXT + 64)];
    let Some(message) = Control::decode(bytes) else { return };
    let encoded = message.encode();
    let again = Control::decode(&encoded).expect("written by us");
    match (&message, &again) {
        // A text is cut to its limit, maybe within a character.
        (Control::Fatal(text), Control::Fatal(cut)) if text.len() > MAX_TEXT => {
            assert!(encoded.len() <= 1 + MAX_TEXT);
            assert!(text.starts_with(cut.trim_end_matches('\u{fffd}')));
        }
        _ => assert_eq!(again, message),
    }
}
