//! Values of Rust types as bytes, and the client flags that say how they were written.
//!
//! Plain bytes and text that are not compressed have the flags 0, as most clients write them. Anything else
//! has [`OURS`] in the upper half of its flags, and marks in the lower half. Values with any other flags come
//! from another client: their bytes are read as they are, by every type.

use std::borrow::Cow;
#[cfg(feature = "compression")]
use std::io::{Read, Write};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

/// Upper half of the flags of values whose lower half is ours.
const OURS: u32 = 0xca77_0000;
const UPPER: u32 = 0xffff_0000;
/// The value is preceded by the header of [`get_or_compute`](crate::Client::get_or_compute).
const ENVELOPE: u32 = 1;
const COMPRESSED: u32 = 2;
const FORMAT_SHIFT: u32 = 4;
const FORMAT_MASK: u32 = 0xf0;

/// Largest value in bytes that is compressed, and largest decompressed one: a compressed value of a megabyte
/// can stand for a gigabyte, and must not take more of the reader's memory and time than this.
#[cfg(feature = "compression")]
const DECOMPRESSED_MAX: u64 = 64 << 20;

/// How bytes represent a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The value's own bytes.
    Bytes,
    /// JSON.
    Json,
    /// `MessagePack`.
    MessagePack,
}

impl Format {
    /// The format's number in the item's flags.
    fn number(self) -> u32 {
        match self {
            Self::Bytes => 0,
            Self::Json => 1,
            Self::MessagePack => 2,
        }
    }

    fn name(number: u32) -> &'static str {
        match number {
            0 => "plain bytes",
            1 => "JSON",
            2 => "MessagePack",
            _ => "a format that this version of the client does not know",
        }
    }
}

/// A type whose values can be stored and read: bytes and text as they are, whole numbers in decimal (as
/// `incr` and `decr` want them), what serde knows as `Json` or `MessagePack` (features `json` and `msgpack`),
/// and an [`Arc`] or [`Box`] of any of these. What can only be written is a [`ToValue`].
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

macro_rules! bytes {
    ($($type:ty: $encode:expr, $decode:expr;)*) => { $(
        impl Value for $type {
            const FORMAT: Format = Format::Bytes;

            fn encode(&self) -> Result<Bytes, String> {
                Ok($encode(self))
            }

            fn decode(data: Bytes) -> Result<Self, String> {
                $decode(data)
            }
        }
    )* };
}

bytes! {
    Bytes: Self::clone, Ok;
    Vec<u8>: |own: &Self| Bytes::copy_from_slice(own), |data: Bytes| Ok(data.to_vec());
    String: |own: &Self| Bytes::copy_from_slice(own.as_bytes()),
        |data: Bytes| Self::from_utf8(data.to_vec()).map_err(|error| error.to_string());
}

/// A number in decimal.
fn parse<T: FromStr>(data: &[u8], range: &str) -> Result<T, String> {
    // A decr that makes the number shorter leaves blanks behind it.
    let text = std::str::from_utf8(data).unwrap_or_default().trim_end_matches(' ');
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("not a number {range}"));
    }
    text.parse().map_err(|_| format!("not a number {range}"))
}

macro_rules! numbers {
    ($($type:ty: $range:literal,)*) => { $(
        /// In decimal: what `incr` and `decr` count with, as long as it is not negative and below 2^64.
        impl Value for $type {
            const FORMAT: Format = Format::Bytes;

            fn encode(&self) -> Result<Bytes, String> {
                Ok(self.to_string().into())
            }

            fn decode(data: Bytes) -> Result<Self, String> {
                parse(&data, $range)
            }
        }
    )* };
}

numbers! {
    u8: "from 0 to 255",
    u16: "from 0 to 65535",
    u32: "from 0 to 2^32 - 1",
    u64: "from 0 to 2^64 - 1",
    u128: "from 0 to 2^128 - 1",
    usize: "that this machine can address",
    i8: "from -128 to 127",
    i16: "from -32768 to 32767",
    i32: "from -2^31 to 2^31 - 1",
    i64: "from -2^63 to 2^63 - 1",
    i128: "from -2^127 to 2^127 - 1",
    isize: "that this machine can address",
}

impl<const N: usize> Value for [u8; N] {
    const FORMAT: Format = Format::Bytes;

    fn encode(&self) -> Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(self))
    }

    fn decode(data: Bytes) -> Result<Self, String> {
        Self::try_from(&data[..]).map_err(|_| format!("not of {N} bytes"))
    }
}

/// Shared values, boxes, and what is borrowed or owned are stored as what they hold.
macro_rules! holders {
    ($($holder:ty as $owned:ty $(where $T:ident: $($bound:ident)+)?,)*) => { $(
        impl $(<$T: $($bound +)+>)? Value for $holder {
            const FORMAT: Format = <$owned>::FORMAT;

            fn encode(&self) -> Result<Bytes, String> {
                holders!(@encode self, $($T)?)
            }

            fn decode(data: Bytes) -> Result<Self, String> {
                <$owned>::decode(data).map(Self::from)
            }
        }
    )* };
    (@encode $self:ident, $T:ident) => { (**$self).encode() };
    (@encode $self:ident,) => { Ok(Bytes::copy_from_slice((**$self).as_ref())) };
}

holders! {
    Arc<T> as T where T: Value Sync,
    Box<T> as T where T: Value,
    Arc<str> as String,
    Arc<[u8]> as Vec<u8>,
    Box<str> as String,
    Box<[u8]> as Vec<u8>,
    Cow<'static, str> as String,
    Cow<'static, [u8]> as Vec<u8>,
}

/// Values that can be written: every [`Value`], and borrowed forms such as a text `"..."`, which is read as a
/// `String`.
pub trait ToValue: Send {
    /// How it is written.
    fn format(&self) -> Format;

    /// Encodes the value.
    ///
    /// # Errors
    /// Why the value cannot be encoded.
    fn to_value(&self) -> Result<Bytes, String>;
}

impl<T: Value> ToValue for T {
    fn format(&self) -> Format {
        T::FORMAT
    }

    fn to_value(&self) -> Result<Bytes, String> {
        self.encode()
    }
}

macro_rules! borrowed {
    ($($type:ty)*) => { $(
        impl ToValue for $type {
            fn format(&self) -> Format {
                Format::Bytes
            }

            fn to_value(&self) -> Result<Bytes, String> {
                let bytes: &[u8] = self.as_ref();
                Ok(Bytes::copy_from_slice(bytes))
            }
        }
    )* };
}

borrowed! { str [u8] &str &[u8] &String &Vec<u8> &Bytes }

/// Implements the traits for formats of serde.
macro_rules! formats {
    ($(
        $(#[$doc:meta])*
        $feature:literal $name:ident: $write:path, $read:path;
    )*) => { $(
        $(#[$doc])*
        #[cfg(feature = $feature)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name<T>(
            /// The value.
            pub T,
        );

        #[cfg(feature = $feature)]
        impl<T: serde::Serialize + serde::de::DeserializeOwned + Send> Value for $name<T> {
            const FORMAT: Format = Format::$name;

            fn encode(&self) -> Result<Bytes, String> {
                $write(&self.0).map(Bytes::from).map_err(|error| error.to_string())
            }

            fn decode(data: Bytes) -> Result<Self, String> {
                let wrong = |error| format!("not {} of this type: {error}", Format::name(Self::FORMAT.number()));
                $read(&data).map(Self).map_err(wrong)
            }
        }
    )* };
}

formats! {
    /// A value of any type that serde knows, stored as JSON.
    ///
    /// ```
    /// use cattlegrid_client::{Json, Value};
    ///
    /// let Json((name, age)) = Json::<(String, u32)>::decode(br#"["Ada", 36]"#.as_slice().into())?;
    /// assert_eq!((name.as_str(), age), ("Ada", 36));
    /// # Ok::<(), String>(())
    /// ```
    "json" Json: serde_json::to_vec, serde_json::from_slice;

    /// A value of any type that serde knows, stored as `MessagePack`. Structures are written with the names
    /// of their fields, so that fields can be added (with `#[serde(default)]`) while old values are in the
    /// cache.
    "msgpack" MessagePack: rmp_serde::to_vec_named, rmp_serde::from_slice;
}

/// The bytes of a value, and the flags that say how they were written. Values of more than `compress_above`
/// bytes are compressed if that makes them smaller (feature `compression`; without it they never are).
///
/// # Errors
/// The value has no such form: why.
pub(crate) fn encode<T: ToValue + ?Sized>(
    value: &T,
    compress_above: Option<usize>,
) -> Result<(Bytes, u32), String> {
    let data = value.to_value()?;
    let format = value.format().number() << FORMAT_SHIFT;
    if compress_above.is_some_and(|limit| data.len() > limit)
        && let Some(smaller) = compress(&data)
    {
        return Ok((smaller, OURS | format | COMPRESSED));
    }
    Ok((data, if format == 0 { 0 } else { OURS | format }))
}

/// The value that a client with these flags has written.
///
/// # Errors
/// It was written as another format than this type's, is compressed and cannot be read, or is no such value:
/// why.
pub(crate) fn decode<T: Value>(data: Bytes, flags: u32) -> Result<T, String> {
    if flags & UPPER != OURS {
        return T::decode(data).map_err(|error| match flags {
            0 => error,
            _ => format!("{error} (another client wrote it with the flags {flags})"),
        });
    }
    if flags & !(UPPER | FORMAT_MASK | COMPRESSED) != 0 {
        return Err(match flags & ENVELOPE {
            0 => format!("a later version of this client wrote it with the flags {flags:#x}"),
            _ => "get_or_compute wrote it: read it with `peek` or `get_or_compute`".to_owned(),
        });
    }
    let format = (flags & FORMAT_MASK) >> FORMAT_SHIFT;
    if format != T::FORMAT.number() {
        let (written, wanted) = (Format::name(format), Format::name(T::FORMAT.number()));
        return Err(format!("written as {written}, but read as {wanted}"));
    }
    if flags & COMPRESSED == 0 { T::decode(data) } else { T::decode(decompress(&data)?) }
}

/// The flags of a value that is preceded by a header of [`get_or_compute`](crate::Client::get_or_compute).
pub(crate) fn with_envelope(flags: u32) -> u32 {
    OURS | ENVELOPE | if flags & UPPER == OURS { flags & !UPPER } else { 0 }
}

/// The flags of the value behind the header, if there is a header.
pub(crate) fn without_envelope(flags: u32) -> Option<u32> {
    (flags & (UPPER | ENVELOPE) == OURS | ENVELOPE).then_some(flags & !ENVELOPE)
}

/// Smaller bytes that [`decompress`] turns into these.
#[cfg(feature = "compression")]
fn compress(data: &[u8]) -> Option<Bytes> {
    if data.len() as u64 > DECOMPRESSED_MAX {
        return None;
    }
    let mut encoder =
        flate2::write::ZlibEncoder::new(Vec::with_capacity(data.len() / 2), flate2::Compression::fast());
    encoder.write_all(data).ok()?;
    let smaller = encoder.finish().ok()?;
    (smaller.len() < data.len()).then(|| smaller.into())
}

#[cfg(not(feature = "compression"))]
fn compress(_: &[u8]) -> Option<Bytes> {
    None
}

#[cfg(feature = "compression")]
fn decompress(data: &[u8]) -> Result<Bytes, String> {
    decompress_up_to(data, DECOMPRESSED_MAX)
}

#[cfg(not(feature = "compression"))]
fn decompress(_: &[u8]) -> Result<Bytes, String> {
    Err("it is compressed: this program needs the feature `compression` of cattlegrid-client to read it"
        .to_owned())
}

#[cfg(feature = "compression")]
fn decompress_up_to(data: &[u8], limit: u64) -> Result<Bytes, String> {
    let mut whole = Vec::new();
    let mut decoder = flate2::bufread::ZlibDecoder::new(data).take(limit + 1);
    decoder.read_to_end(&mut whole).map_err(|error| format!("it is damaged: zlib: {error}"))?;
    if whole.len() as u64 <= limit && !decoder.get_ref().get_ref().is_empty() {
        return Err("it is damaged: bytes follow the compressed value, as after an append".to_owned());
    }
    if whole.len() as u64 > limit {
        return Err(format!("it has more than {limit} bytes when decompressed"));
    }
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_values_have_the_flags_of_any_client() {
        assert_eq!(encode(&"text".to_owned(), None).unwrap(), (Bytes::from("text"), 0));
        assert_eq!(encode(&18u64, None).unwrap(), (Bytes::from("18"), 0));
        assert_eq!(decode::<u64>("9 ".into(), 0).unwrap(), 9);
        assert!(decode::<u64>("9x".into(), 0).is_err());
        assert!(decode::<u64>("".into(), 0).is_err());
        assert!(decode::<String>(Bytes::from_static(&[0xff]), 0).unwrap_err().contains("utf-8"));
    }

    #[test]
    fn values_of_other_clients_are_read_whatever_their_flags() {
        for flags in [0, 1, 2, 4, 0x0100_0000, OURS + 0x1_0000, u32::MAX] {
            assert_eq!(decode::<Bytes>("5".into(), flags).unwrap(), Bytes::from("5"));
            assert_eq!(decode::<String>("5".into(), flags).unwrap(), "5");
        }
        let error = decode::<String>(Bytes::from_static(&[0x80, 0x04]), 1).unwrap_err();
        assert!(error.contains("flags 1"), "{error}");
    }

    #[test]
    fn a_header_is_seen_in_the_flags_and_nothing_else_is_lost() {
        for flags in [0, OURS | 0x10, OURS | 0x20 | COMPRESSED] {
            let marked = with_envelope(flags);
            assert_eq!(without_envelope(flags), None);
            assert_eq!(without_envelope(marked).unwrap() & !UPPER, flags & !UPPER);
            assert!(decode::<Bytes>("x".into(), marked).unwrap_err().contains("get_or_compute"));
        }
        assert_eq!(without_envelope(1), None);
        assert_eq!(without_envelope(u32::MAX), None);
        let flags = without_envelope(with_envelope(0)).unwrap();
        assert_eq!(decode::<String>("x".into(), flags).unwrap(), "x");
    }

    #[test]
    fn marks_of_a_later_version_are_an_error() {
        assert!(decode::<Bytes>("x".into(), OURS | 4).unwrap_err().contains("later version"));
        assert!(decode::<Bytes>("x".into(), OURS | 0x1000).unwrap_err().contains("later version"));
        assert!(decode::<Bytes>("x".into(), OURS | 0xf0).unwrap_err().contains("does not know"));
    }

    #[cfg(feature = "json")]
    #[test]
    fn json_of_this_client_and_of_others_is_read_and_is_not_taken_for_bytes() {
        let (data, flags) = encode(&Json(vec![1, 2]), None).unwrap();
        assert_eq!((&data[..], flags), (b"[1,2]".as_slice(), OURS | 0x10));
        assert_eq!(decode::<Json<Vec<u8>>>(data.clone(), flags).unwrap(), Json(vec![1, 2]));
        assert_eq!(decode::<Json<Vec<u8>>>(data.clone(), 0).unwrap(), Json(vec![1, 2]));
        assert_eq!(decode::<Json<Vec<u8>>>(data.clone(), 32).unwrap(), Json(vec![1, 2]));
        assert_eq!(
            decode::<String>(data.clone(), flags).unwrap_err(),
            "written as JSON, but read as plain bytes"
        );
        assert!(decode::<Json<Vec<String>>>(data, flags).unwrap_err().contains("JSON of this type"));
        assert!(decode::<Json<u8>>("{".into(), 4).unwrap_err().contains("flags 4"));
    }

    #[cfg(all(feature = "json", feature = "msgpack"))]
    #[test]
    fn formats_are_not_taken_for_each_other() {
        let (data, flags) = encode(&MessagePack(vec![1, 2]), None).unwrap();
        assert_eq!(decode::<MessagePack<Vec<u8>>>(data.clone(), flags).unwrap(), MessagePack(vec![1, 2]));
        let error = decode::<Json<Vec<u8>>>(data, flags).unwrap_err();
        assert_eq!(error, "written as MessagePack, but read as JSON");
        let error = decode::<MessagePack<u8>>("1".into(), OURS | 0x10).unwrap_err();
        assert_eq!(error, "written as JSON, but read as MessagePack");
    }

    #[cfg(feature = "msgpack")]
    #[test]
    fn a_field_can_be_added_to_what_messagepack_has() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Old {
            name: String,
        }
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct New {
            #[serde(default)]
            age: u8,
            name: String,
        }
        let (data, flags) = encode(&MessagePack(Old { name: "Ada".to_owned() }), None).unwrap();
        let MessagePack(new) = decode::<MessagePack<New>>(data, flags).unwrap();
        assert_eq!(new, New { age: 0, name: "Ada".to_owned() });
    }

    #[cfg(not(feature = "compression"))]
    #[test]
    fn a_compressed_value_names_the_missing_feature() {
        assert_eq!(encode(&"x".repeat(99), Some(10)).unwrap().1, 0);
        assert!(
            decode::<String>("x".into(), OURS | COMPRESSED).unwrap_err().contains("feature `compression`")
        );
    }

    #[cfg(feature = "compression")]
    #[test]
    fn only_what_is_above_the_limit_and_gets_smaller_is_compressed() {
        let text = "x".repeat(1000);
        assert_eq!(encode(&text, None).unwrap().1, 0);
        assert_eq!(encode(&text, Some(1000)).unwrap().1, 0);
        let (data, flags) = encode(&text, Some(999)).unwrap();
        assert_eq!(flags, OURS | COMPRESSED);
        assert!(data.len() < 100);
        assert_eq!(decode::<String>(data, flags).unwrap(), text);
        assert_eq!(encode(&"short".to_owned(), Some(0)).unwrap(), (Bytes::from("short"), 0));
    }

    #[cfg(feature = "compression")]
    #[test]
    fn a_damaged_value_and_a_bomb_are_errors() {
        let data = compress(&vec![7; 100_000]).unwrap();
        assert_eq!(decompress_up_to(&data, 100_000).unwrap().len(), 100_000);
        assert!(decompress_up_to(&data, 99_999).unwrap_err().contains("more than 99999 bytes"));
        assert!(decompress(&[&data[..], b"zzz"].concat()).unwrap_err().contains("append"));
        for cut in [0, 1, data.len() / 2, data.len() - 1] {
            assert!(decompress(&data[..cut]).unwrap_err().contains("damaged"), "cut at {cut}");
        }
        let mut flipped = data.to_vec();
        *flipped.last_mut().unwrap() ^= 1;
        assert!(decompress(&flipped).unwrap_err().contains("damaged"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(data in prop::collection::vec(0u8..4, 0..2000), limit in prop::option::of(0usize..2000)) {
            let (bytes, flags) = encode(&data, limit).unwrap();
            prop_assert!(bytes.len() <= data.len());
            prop_assert_eq!(decode::<Vec<u8>>(bytes, flags).unwrap(), data);
        }

        #[test]
        fn any_bytes_and_flags_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..100), low in 0u32..256, ours: bool) {
            let flags = if ours { OURS | low } else { low };
            let read = decode::<Bytes>(data.into(), flags);
            prop_assert!(ours || read.is_ok());
        }
    }
}
