//! Frames on the job socket: a 16-byte header and a body.
//!
//! ```text
//!  0        4      5       6          8                16
//!  ┌────────┬──────┬───────┬──────────┬─────────────────┬──────────────┐
//!  │ len u32│ kind │ flags │ 0 (u16)  │ id u64          │ body (len)   │   little endian
//!  └────────┴──────┴───────┴──────────┴─────────────────┴──────────────┘
//! ```
//! `len` counts the body only. `docs/worker-protocol.md` is the reference; its test vectors are checked
//! against this file by `tests/it/vectors.rs`.

/// Version of the protocol in HELLO and READY.
pub const VERSION: u16 = 1;

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;

/// Default of the largest body either side accepts, 64 MiB.
pub const MAX_FRAME_DEFAULT: u32 = 64 << 20;

/// Longest body that a worker sends before INIT has told it the limit, 64 KiB.
pub const START_MAX: u32 = 64 << 10;

/// Flag of RESULT: more of this reply follows in another RESULT of the same id. Of JOB: the next frame is a
/// JOB of the same batch.
pub const FLAG_MORE: u8 = 1;

/// Flag of ERROR: trying the job again may help.
pub const FLAG_RETRYABLE: u8 = 2;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Parent: configuration, worker number and generation; always the first frame.
    Init = 1,
    /// Parent: a job.
    Job = 2,
    /// Parent: the job's caller has gone; stop if you can.
    Cancel = 3,
    /// Parent: finish the queued jobs, then exit.
    Retire = 4,
    /// Parent: answer with PONG.
    Ping = 5,
    /// Worker: version, pid, concurrency; always the first frame.
    Hello = 16,
    /// Worker: initialised, send jobs.
    Ready = 17,
    /// Worker: reply to a job.
    Result = 18,
    /// Worker: the job failed (or, with id 0 before READY, the initialisation did).
    Error = 19,
    /// Worker: an event, about a job or (id 0) about itself.
    Event = 20,
    /// Worker: how far a job is.
    Progress = 21,
    /// Worker: a line for the log.
    Log = 22,
    /// Worker: answer to PING.
    Pong = 23,
    /// Worker: asks to be retired.
    Leave = 24,
    /// Worker: the job was taken back, so it was not begun here.
    Skipped = 25,
}

impl Kind {
    /// The kind of a byte, if this version knows it.
    pub fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Init,
            2 => Self::Job,
            3 => Self::Cancel,
            4 => Self::Retire,
            5 => Self::Ping,
            16 => Self::Hello,
            17 => Self::Ready,
            18 => Self::Result,
            19 => Self::Error,
            20 => Self::Event,
            21 => Self::Progress,
            22 => Self::Log,
            23 => Self::Pong,
            24 => Self::Leave,
            25 => Self::Skipped,
            _ => return None,
        })
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the body.
    pub len: u32,
    /// The kind of the frame.
    pub kind: Kind,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// The job, or 0.
    pub id: u64,
}

/// A header that means the peer is broken: the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The body is longer than was agreed.
    #[error("frame of {len} bytes, the limit is {max}")]
    TooLong {
        /// Announced length.
        len: u32,
        /// The agreed limit.
        max: u32,
    },
    /// A kind this version does not know.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The reserved bytes are not 0.
    #[error("reserved header bytes are {0:#x}, not 0")]
    Reserved(u16),
    /// The body does not have the form of its kind.
    #[error("malformed body of {0:?}")]
    Body(Kind),
}

impl Header {
    /// The bytes of this header.
    #[inline]
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.flags;
        bytes[8..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `bytes`; `Ok(None)` while fewer than 16 are there.
    ///
    /// # Errors
    /// [`FrameError`] for a body above `max_frame`, an unknown kind, or reserved bytes in use.
    #[inline]
    pub fn decode(bytes: &[u8], max_frame: u32) -> Result<Option<Self>, FrameError> {
        let Some(head) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let kind = Kind::from_u8(head[4]).ok_or(FrameError::Kind(head[4]))?;
        if len > max_frame {
            return Err(FrameError::TooLong { len, max: max_frame });
        }
        let reserved = u16::from_le_bytes([head[6], head[7]]);
        if reserved != 0 {
            return Err(FrameError::Reserved(reserved));
        }
        let [.., i0, i1, i2, i3, i4, i5, i6, i7] = *head;
        let id = u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
        Ok(Some(Self { len, kind, flags: head[5], id }))
    }
}

/// Appends a frame whose body `write` appends; the length is filled in afterwards.
///
/// # Panics
/// When the body reaches 4 GiB.
#[inline]
pub fn put_frame(out: &mut Vec<u8>, kind: Kind, flags: u8, id: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&Header { len: 0, kind, flags, id }.encode());
    write(out);
    let len = u32::try_from(out.len() - start - HEADER_LEN).expect("a body is smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// Takes the first complete frame off `bytes`: header, body, and the rest.
///
/// # Errors
/// As [`Header::decode`]; it is seen as soon as the header is there.
#[expect(clippy::type_complexity, reason = "three parts of one slice, taken apart at once by every caller")]
#[inline]
pub fn take_frame(bytes: &[u8], max_frame: u32) -> Result<Option<(Header, &[u8], &[u8])>, FrameError> {
    let Some(header) = Header::decode(bytes, max_frame)? else { return Ok(None) };
    let rest = &bytes[HEADER_LEN..];
    if rest.len() < header.len as usize {
        return Ok(None);
    }
    let (body, rest) = rest.split_at(header.len as usize);
    Ok(Some((header, body, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_at_every_split() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, Kind::Progress, 0, 0x0102_0304_0506_0708, |out| out.extend_from_slice(b"50%"));
        for cut in 0..bytes.len() {
            assert_eq!(take_frame(&bytes[..cut], 100), Ok(None), "cut at {cut}");
        }
        bytes.extend_from_slice(b"next");
        let (header, body, rest) = take_frame(&bytes, 100).unwrap().unwrap();
        assert_eq!(header, Header { len: 3, kind: Kind::Progress, flags: 0, id: 0x0102_0304_0506_0708 });
        assert_eq!((body, rest), (&b"50%"[..], &b"next"[..]));
    }

    #[test]
    fn broken_headers_are_seen_before_their_body() {
        let good = Header { len: 9, kind: Kind::Result, flags: 0, id: 1 }.encode();
        assert_eq!(take_frame(&good, 8), Err(FrameError::TooLong { len: 9, max: 8 }));
        let mut kind = good;
        kind[4] = 99;
        assert_eq!(take_frame(&kind, 100), Err(FrameError::Kind(99)));
        let mut reserved = good;
        reserved[7] = 1;
        assert_eq!(take_frame(&reserved, 100), Err(FrameError::Reserved(256)));
    }

    #[test]
    fn every_kind_is_its_byte() {
        for byte in 0..=u8::MAX {
            if let Some(kind) = Kind::from_u8(byte) {
                assert_eq!(kind as u8, byte);
            }
        }
    }
}
