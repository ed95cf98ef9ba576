//! Values of Rust types as bytes, and the client flags that say how they were written.
//!
//! Plain bytes and text that are not compressed have the flags 0, as most clients write them. Anything else has [`OURS`] in the
//! upper half of its flags, and marks in the lower half.

use bytes::Bytes;

/// Upper half of the flags of values whose lower half is ours.
const OURS: u32 = 0xca77_0000;
const UPPER: u32 = 0xffff_0000;
/// The value is preceded by the header of [`get_or_compute`](crate::Client::get_or_compute).
pub(crate) const ENVELOPE: u32 = 1;
const COMPRESSED: u32 = 2;
const FORMAT_SHIFT: u32 = 4;
const FORMAT_MASK: u32 = 0xf0;

/// How bytes represent a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The value's own bytes.
    Bytes,
    /// JSON.
    Json,
    /// MessagePack.
    MessagePack,
}

/// A type whose values can be stored: bytes and text as they are, what serde knows as `Json` or `MessagePack` (features `json` and
/// `msgpack`).
pub trait Value: Sized + Send {
    /// How it is written.
    const FORMAT: Format;

    /// The bytes of a value.
    ///
    /// # Errors
    /// Why it has none.
    fn encode(&self) -> Result<Bytes, String>;

    /// The value of these bytes.
    ///
    /// # Errors
    /// Why they are no such value.
    fn decode(data: Bytes) -> Result<Self, String>;
}

impl Value for Bytes {
    const FORMAT: Format = Format::Bytes;

    fn encode(&self) -> Result<Bytes, String> {
        Ok(self.clone())
    }

    fn decode(data: Bytes) -> Result<Self, String> {
        Ok(data)
    }
}

impl Value for Vec<u8> {
    const FORMAT: Format = Format::Bytes;

    fn encode(&self) -> Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(self))
    }

    fn decode(data: Bytes) -> Result<Self, String> {
        Ok(data.to_vec())
    }
}

impl Value for String {
    const FORMAT: Format = Format::Bytes;

    fn encode(&self) -> Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(self.as_bytes()))
    }

    fn decode(data: Bytes) -> Result<Self, String> {
        Self::from_utf8(data.to_vec()).map_err(|error| error.to_string())
    }
}
