//! Bodies of the frames that have fields: HELLO, INIT, JOB, ERROR.
//!
//! # Invariant
//! Any bytes are parsed without a panic; a body that is accepted is the same when it is written again.

use crate::frame::{FLAG_RETRYABLE, Kind, put_frame};
use crate::list::{List, put_list};

/// HELLO: the worker's version, process id and abilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version, now 1.
    pub version: u16,
    /// The worker will map the progress page if INIT brings one.
    pub page: bool,
    /// Whether the worker claims jobs in that page, so that jobs that it has not begun can be taken back.
    pub claims: bool,
    /// Whether the worker takes batches, one at a time.
    pub batches: bool,
    /// Process id of the worker.
    pub pid: u32,
    /// Jobs it works on at the same time: 1 for a synchronous worker. With `batches` the most jobs in a
    /// batch, 1 to 65535.
    pub concurrency: u32,
    /// Longest body it accepts.
    pub max_frame: u32,
    /// Name and version of the SDK, for the log.
    pub sdk: String,
}

impl Hello {
    /// Appends the frame: `u16` version, `u16` flags (bit 0: page, bit 1: claims, bit 2: batches), `u32` pid,
    /// `u32` concurrency, `u32` `max_frame`, list of one: SDK name.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, Kind::Hello, 0, 0, |out| {
            out.extend_from_slice(&self.version.to_le_bytes());
            let flags = u16::from(self.page) | u16::from(self.claims) << 1 | u16::from(self.batches) << 2;
            out.extend_from_slice(&flags.to_le_bytes());
            for field in [self.pid, self.concurrency, self.max_frame] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            put_list(out, &[&self.sdk]);
        });
    }

    /// Reads a body; `None` if it is malformed.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (version, flags) = (fields.u16()?, fields.u16()?);
        let (pid, concurrency, max_frame) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let sdk = String::from_utf8_lossy(List::parse(fields.0)?.get(0)?).into_owned();
        let (page, claims, batches) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        Some(Self { version, page, claims, batches, pid, concurrency, max_frame, sdk })
    }
}

/// INIT: the limits, numbers and configuration of a worker. Borrowed from the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init<'a> {
    /// Longest body the parent accepts.
    pub max_frame: u32,
    /// Generation of the program, counted from 1; `reload` raises it.
    pub generation: u32,
    /// Number of the worker, counted from 1, never used twice in a pool.
    pub worker: u64,
    /// The bytes given to `Builder::init`.
    pub config: &'a [u8],
}

impl<'a> Init<'a> {
    /// Appends the frame: `u32` `max_frame`, `u32` generation, `u64` worker, list of one: config.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, Kind::Init, 0, 0, |out| {
            out.extend_from_slice(&self.max_frame.to_le_bytes());
            out.extend_from_slice(&self.generation.to_le_bytes());
            out.extend_from_slice(&self.worker.to_le_bytes());
            put_list(out, &[self.config]);
        });
    }

    /// Reads a body; `None` if it is malformed.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (max_frame, generation, worker) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let config = List::parse(fields.0)?.get(0)?;
        Some(Self { max_frame, generation, worker, config })
    }
}

/// JOB: deadline, attempt and arguments. Borrowed from the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobBody<'a> {
    /// Milliseconds the job has left when sent, 0 for no limit.
    pub deadline_ms: u32,
    /// 0 at first, then 1 for every retry after a lost worker.
    pub attempt: u32,
    /// The arguments.
    pub args: List<'a>,
}

impl<'a> JobBody<'a> {
    /// The bytes before the list: `u32` deadline, `u32` attempt.
    #[inline]
    pub fn prefix(deadline_ms: u32, attempt: u32) -> [u8; 8] {
        let ([d0, d1, d2, d3], [a0, a1, a2, a3]) = (deadline_ms.to_le_bytes(), attempt.to_le_bytes());
        [d0, d1, d2, d3, a0, a1, a2, a3]
    }

    /// Reads a body; `None` if it is malformed.
    #[inline]
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (deadline_ms, attempt) = (fields.u32()?, fields.u32()?);
        Some(Self { deadline_ms, attempt, args: List::parse(fields.0)? })
    }
}

/// ERROR: why a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorBody {
    /// A short word a program can compare: `exception`, `panic`, `cancelled`, `too_large`, or the worker's
    /// own.
    pub code: String,
    /// One line for people.
    pub message: String,
    /// More: a traceback, or nothing.
    pub detail: String,
    /// Trying again may help. Travels as a flag.
    pub retryable: bool,
}

impl ErrorBody {
    /// Appends the body as [`ErrorBody::put`] does, with texts cut so that it has at most `max_frame` bytes.
    /// The end of the detail is kept; if that is not enough, the beginnings of message and code.
    pub(crate) fn put_within(&self, out: &mut Vec<u8>, id: u64, max_frame: u32) {
        let room = (max_frame as usize).saturating_sub(LENGTHS);
        if self.code.len() + self.message.len() + self.detail.len() <= room {
            return self.put(out, id);
        }
        let code = head(&self.code, room);
        let message = head(&self.message, room - code.len());
        let detail = tail(&self.detail, room - code.len() - message.len());
        let (code, message, detail) = (code.to_owned(), message.to_owned(), detail.to_owned());
        Self { code, message, detail, retryable: self.retryable }.put(out, id);
    }

    /// Appends the frame: list of three: code, message, detail.
    pub fn put(&self, out: &mut Vec<u8>, id: u64) {
        let flags = if self.retryable { FLAG_RETRYABLE } else { 0 };
        put_frame(out, Kind::Error, flags, id, |out| {
            put_list(out, &[&self.code, &self.message, &self.detail]);
        });
    }

    /// Reads a body; `None` if it is malformed.
    pub fn parse(flags: u8, body: &[u8]) -> Option<Self> {
        let list = List::parse(body).filter(|list| list.len() == 3)?;
        let text = |index| list.get(index).map(|part| String::from_utf8_lossy(part).into_owned());
        let retryable = flags & FLAG_RETRYABLE != 0;
        Some(Self { code: text(0)?, message: text(1)?, detail: text(2)?, retryable })
    }
}

/// The first bytes of `text`, at most `size`, no character cut.
pub(crate) fn head(text: &str, size: usize) -> &str {
    let end = (0..=size.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The last bytes of `text`, at most `size`, no character cut.
fn tail(text: &str, size: usize) -> &str {
    let start = (text.len().saturating_sub(size)..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(text.len())..]
}

/// Most bytes that the count and the lengths of an ERROR take.
const LENGTHS: usize = 16;

/// Reads fixed fields off the front of a body.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HEADER_LEN, take_frame};

    #[test]
    fn bodies_survive_the_wire_and_refuse_every_cut() {
        let hello = Hello {
            version: 1,
            page: false,
            claims: true,
            batches: true,
            pid: 42,
            concurrency: 8,
            max_frame: 1 << 20,
            sdk: "test/1".into(),
        };
        let mut bytes = Vec::new();
        hello.put(&mut bytes);
        let (_, body, _) = take_frame(&bytes, 1000).unwrap().unwrap();
        assert_eq!(Hello::parse(body), Some(hello));
        for cut in 0..body.len() {
            assert_eq!(Hello::parse(&body[..cut]), None);
        }

        let init = Init { max_frame: 9, generation: 2, worker: 1 << 40, config: b"c" };
        let mut bytes = Vec::new();
        init.put(&mut bytes);
        assert_eq!(Init::parse(&bytes[HEADER_LEN..]), Some(init));

        let error =
            ErrorBody { code: "c".into(), message: "m".into(), detail: String::new(), retryable: true };
        let mut bytes = Vec::new();
        error.put(&mut bytes, 7);
        let (header, body, _) = take_frame(&bytes, 1000).unwrap().unwrap();
        assert_eq!((header.id, ErrorBody::parse(header.flags, body)), (7, Some(error)));
    }
}
