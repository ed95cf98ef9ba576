//! Values of a row event, and the texts that they have in a tag.

use jiff::Timestamp;
use jiff::tz::Offset;

use crate::mysql::event::hex;
use crate::mysql::read::ByteReader;

/// How a column is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueLayout {
    kind: u8,
    meta: u16,
}

/// How a column's value becomes text: from its definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueShape {
    Signed,
    Unsigned,
    /// Bytes that are UTF-8, or ASCII.
    Text,
    /// cp1252, which MySQL calls `latin1`.
    Latin1,
    /// Hexadecimal digits; filled up with zeros to this length, as the log leaves them out at the end.
    Bytes {
        length: usize,
    },
    Choice(Vec<String>),
    Set(Vec<String>),
    /// The value's own text: decimals, dates, times, years, bits.
    Own,
    /// MariaDB's.
    Uuid,
    Inet4,
    Inet6,
    /// The value has no unique text.
    Refused,
}

impl ValueLayout {
    /// The columns of a table map.
    pub(crate) fn all(types: &[u8], meta: &[u8]) -> Option<Vec<Self>> {
        let mut reader = ByteReader::new(meta);
        types.iter().map(|kind| Self::read(*kind, &mut reader)).collect()
    }

    fn read(kind: u8, reader: &mut ByteReader<'_>) -> Option<Self> {
        Some(match kind {
            // Single bytes: precision, or the bytes of a length.
            4 | 5 | 17..=19 | 140 | 242 | 245 | 249..=252 | 255 => {
                Self { kind, meta: u16::from(reader.u8()?) }
            }
            15 | 16 | 141 => Self { kind, meta: reader.u16()? },
            246 => {
                let (precision, scale) = (reader.u8()?, reader.u8()?);
                Self { kind, meta: u16::from(precision) << 8 | u16::from(scale) }
            }
            247 | 248 | 253 | 254 => {
                let (real, length) = (u16::from(reader.u8()?), u16::from(reader.u8()?));
                // Two bits of a long length are in the type.
                let is_long = real & 0x30 != 0x30;
                let (real, length) = if is_long {
                    (real | 0x30, length | ((real & 0x30) ^ 0x30) << 4)
                } else {
                    (real, length)
                };
                Self { kind: real as u8, meta: length }
            }
            _ => Self { kind, meta: 0 },
        })
    }

    /// Whether values that are written so can have this shape.
    pub(crate) fn fits(self, shape: &ValueShape) -> bool {
        match shape {
            ValueShape::Signed | ValueShape::Unsigned => matches!(self.kind, 1..=3 | 8 | 9),
            ValueShape::Text | ValueShape::Latin1 | ValueShape::Bytes { .. } => {
                matches!(self.kind, 15 | 249..=254)
            }
            ValueShape::Uuid | ValueShape::Inet4 | ValueShape::Inet6 => matches!(self.kind, 253 | 254),
            ValueShape::Choice(_) => self.kind == 247,
            ValueShape::Set(_) => self.kind == 248,
            ValueShape::Own => matches!(self.kind, 10 | 13 | 16..=19 | 246),
            ValueShape::Refused => false,
        }
    }

    /// Takes a value that is not NULL.
    pub(crate) fn take<'a>(self, reader: &mut ByteReader<'a>) -> Option<&'a [u8]> {
        let meta = usize::from(self.meta);
        let bytes = match self.kind {
            6 => 0,
            1 | 13 => 1,
            2 => 2,
            9..=11 => 3,
            3 | 4 | 7 => 4,
            5 | 8 | 12 => 8,
            17 => 4 + meta.div_ceil(2),
            18 => 5 + meta.div_ceil(2),
            19 => 3 + meta.div_ceil(2),
            15 | 141 | 253 | 254 => reader.number(if meta < 256 { 1 } else { 2 })? as usize,
            16 => (meta >> 8) + usize::from(meta & 0xff > 0),
            246 => decimal_bytes(meta >> 8, meta & 0xff)?,
            247 | 248 => meta,
            140 | 242 | 245 | 249..=252 | 255 if (1..=4).contains(&meta) => reader.number(meta)? as usize,
            _ => return None,
        };
        reader.take(bytes)
    }

    /// The text of a value. `None`: it has none.
    pub(crate) fn text(self, shape: &ValueShape, value: &[u8]) -> Option<Vec<u8>> {
        let number = || {
            (value.len() <= 8).then(|| value.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        Some(match shape {
            ValueShape::Unsigned => number()?.to_string().into_bytes(),
            ValueShape::Signed => {
                let bits =
                    64 - 8 * u32::try_from(value.len()).ok().filter(|bytes| (1..=8).contains(bytes))?;
                ((number()? << bits).cast_signed() >> bits).to_string().into_bytes()
            }
            ValueShape::Text => value.to_vec(),
            ValueShape::Latin1 => value.iter().map(|byte| cp1252(*byte)).collect::<String>().into_bytes(),
            ValueShape::Bytes { length } => {
                let mut text = hex(value);
                while text.len() < 2 * length {
                    text.push('0');
                }
                text.into_bytes()
            }
            ValueShape::Choice(names) => match number()? {
                // The empty one, of a value that was refused.
                0 => Vec::new(),
                at => names.get(usize::try_from(at).ok()? - 1)?.clone().into_bytes(),
            },
            ValueShape::Set(names) => {
                let bits = number()?;
                let set: Vec<&str> = names
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| bits >> at & 1 == 1)
                    .map(|(_, name)| name.as_str())
                    .collect();
                set.join(",").into_bytes()
            }
            ValueShape::Own => self.own(value)?.into_bytes(),
            ValueShape::Uuid => uuid(value)?.into_bytes(),
            ValueShape::Inet4 => {
                let bytes: [u8; 4] = padded(value)?;
                std::net::Ipv4Addr::from(bytes).to_string().into_bytes()
            }
            ValueShape::Inet6 => {
                let bytes: [u8; 16] = padded(value)?;
                inet6(std::net::Ipv6Addr::from(bytes)).into_bytes()
            }
            ValueShape::Refused => return None,
        })
    }

    fn own(self, value: &[u8]) -> Option<String> {
        let meta = usize::from(self.meta);
        let low = || ByteReader::new(value).number(value.len().min(8));
        let high = |bytes: usize| {
            Some(value.get(..bytes)?.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let fraction = |bytes: usize| {
            let digits = meta.min(6);
            let tail = value.get(bytes..)?;
            let sum = tail.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
            let micros = sum * [1_000_000, 10_000, 100, 1][tail.len().min(3)];
            Some(if digits == 0 { String::new() } else { format!(".{micros:06}")[..=digits].to_owned() })
        };
        Some(match self.kind {
            13 => match low()? {
                0 => "0000".to_owned(),
                year => (1900 + year).to_string(),
            },
            10 => {
                let date = low()?;
                format!("{:04}-{:02}-{:02}", date >> 9, date >> 5 & 15, date & 31)
            }
            16 => high(value.len().min(8))?.to_string(),
            17 => {
                // The first second of Unix time stands for the zero date.
                let (date, time) = match high(4)? {
                    0 => ("0000-00-00".to_owned(), "00:00:00".to_owned()),
                    seconds => of_unix(seconds)?,
                };
                format!("{date} {time}{}", fraction(4)?)
            }
            18 => {
                let packed = high(5)?.wrapping_sub(0x80_0000_0000);
                let (month, day) = (packed >> 22 & 0x1_ffff, packed >> 17 & 31);
                let (hour, minute, second) = (packed >> 12 & 31, packed >> 6 & 63, packed & 63);
                let (year, month) = (month / 13, month % 13);
                format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{}", fraction(5)?)
            }
            19 => time_text(value, meta)?,
            246 => decimal(value, meta >> 8, meta & 0xff)?,
            _ => return None,
        })
    }
}

/// `TIME(n)`: with its fraction one number, with an offset.
fn time_text(value: &[u8], digits: usize) -> Option<String> {
    let bytes = value.len();
    let whole = value.iter().fold(0i64, |sum, byte| sum << 8 | i64::from(*byte)) - (1i64 << (8 * bytes - 1));
    let (sign, whole) = (if whole < 0 { "-" } else { "" }, whole.unsigned_abs());
    let below = 8 * (bytes.checked_sub(3)?);
    let (time, rest) = (whole >> below, whole & ((1 << below) - 1));
    let micros = rest * [1_000_000, 10_000, 100, 1][(bytes - 3).min(3)];
    let fraction =
        if digits == 0 { String::new() } else { format!(".{micros:06}")[..=digits.min(6)].to_owned() };
    Some(format!("{sign}{:02}:{:02}:{:02}{fraction}", time >> 12 & 0x3ff, time >> 6 & 63, time & 63))
}

/// The date and the time of day, in UTC, of a Unix time in seconds. None: after the year 9999.
fn of_unix(seconds: u64) -> Option<(String, String)> {
    let moment = Offset::UTC.to_datetime(Timestamp::from_second(seconds.try_into().ok()?).ok()?);
    Some((moment.date().to_string(), moment.time().to_string()))
}

/// Bytes of as many digits as are left of nines.
const DIGIT_BYTES: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];

fn decimal_bytes(precision: usize, scale: usize) -> Option<usize> {
    let whole = precision.checked_sub(scale)?;
    let part = |digits: usize| digits / 9 * 4 + DIGIT_BYTES[digits % 9];
    Some(part(whole) + part(scale))
}

fn decimal(value: &[u8], precision: usize, scale: usize) -> Option<String> {
    let whole = precision.checked_sub(scale)?;
    let first = *value.first()?;
    let is_negative = first & 0x80 == 0;
    let flip = if is_negative { 0xff } else { 0 };
    let mut bytes: Vec<u8> = value.iter().map(|byte| byte ^ flip).collect();
    bytes[0] ^= 0x80;
    let mut reader = bytes.as_slice();
    let mut digits = |count: usize| {
        let (taken, rest) = reader.split_at_checked(DIGIT_BYTES[count])?;
        reader = rest;
        let number = taken.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        Some(format!("{number:0count$}"))
    };
    let mut text = String::new();
    if !whole.is_multiple_of(9) {
        text.push_str(&digits(whole % 9)?);
    }
    for _ in 0..whole / 9 {
        text.push_str(&digits(9)?);
    }
    let mut shown = text.trim_start_matches('0').to_owned();
    if shown.is_empty() {
        shown.push('0');
    }
    if scale > 0 {
        shown.push('.');
        for _ in 0..scale / 9 {
            shown.push_str(&digits(9)?);
        }
        if !scale.is_multiple_of(9) {
            shown.push_str(&digits(scale % 9)?);
        }
    }
    if is_negative {
        shown.insert(0, '-');
    }
    Some(shown)
}

/// Zeros at the end are not in the log.
fn padded<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    bytes.get_mut(..value.len())?.copy_from_slice(value);
    Some(bytes)
}

/// The text that MariaDB shows: the end of an address whose beginning is zeros is that of IPv4.
fn inet6(address: std::net::Ipv6Addr) -> String {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, seventh, _] if seventh > 0 => {
            let [.., a, b, c, d] = address.octets();
            format!("::{}", std::net::Ipv4Addr::new(a, b, c, d))
        }
        _ => address.to_string(),
    }
}

fn uuid(value: &[u8]) -> Option<String> {
    let number = u128::from_be_bytes(padded(value)?);
    let text = format!("{number:032x}");
    Some([&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-"))
}

/// The characters that differ from ISO 8859-1.
const CP1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

fn cp1252(byte: u8) -> char {
    if (0x80..0xa0).contains(&byte) { CP1252[usize::from(byte - 0x80)] } else { char::from(byte) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: u8, meta: &[u8], shape: &ValueShape, bytes: &[u8]) -> String {
        let layout = ValueLayout::all(&[kind], meta).unwrap()[0];
        let mut reader = ByteReader::new(bytes);
        let value = layout.take(&mut reader).unwrap();
        assert!(reader.rest().is_empty(), "{kind}: {:?}", reader.rest());
        String::from_utf8(layout.text(shape, value).unwrap()).unwrap()
    }

    #[test]
    fn numbers() {
        assert_eq!(text(1, &[], &ValueShape::Signed, &[0xff]), "-1");
        assert_eq!(text(1, &[], &ValueShape::Unsigned, &[0xff]), "255");
        assert_eq!(text(9, &[], &ValueShape::Signed, &[0, 0, 0x80]), "-8388608");
        assert_eq!(text(8, &[], &ValueShape::Unsigned, &[0xff; 8]), u64::MAX.to_string());
        assert_eq!(text(8, &[], &ValueShape::Signed, &[0xff; 8]), "-1");
        assert_eq!(text(16, &[2, 1], &ValueShape::Own, &[2, 1]), "513");
        // The example of MySQL's source: 1234567890.1234 as DECIMAL(14, 4).
        let bytes = [0x81, 0x0d, 0xfb, 0x38, 0xd2, 0x04, 0xd2];
        assert_eq!(text(246, &[14, 4], &ValueShape::Own, &bytes), "1234567890.1234");
        let negative = [0x7e, 0xf2, 0x04, 0xc7, 0x2d, 0xfb, 0x2d];
        assert_eq!(text(246, &[14, 4], &ValueShape::Own, &negative), "-1234567890.1234");
        assert_eq!(text(246, &[5, 2], &ValueShape::Own, &[0x80, 0, 50]), "0.50");
    }

    #[test]
    fn addresses_and_times_that_are_none() {
        for shown in
            ["::", "::1", "::506", "::1.2.3.4", "::0.1.0.2", "::ffff:0.0.0.1", "::1:0:0", "2001:db8::1"]
        {
            let octets = shown.parse::<std::net::Ipv6Addr>().unwrap().octets();
            let bytes = [&[16], &octets[..]].concat();
            assert_eq!(text(254, &[254, 16], &ValueShape::Inet6, &bytes), shown);
        }
        assert_eq!(text(17, &[2], &ValueShape::Own, &[0; 5]), "0000-00-00 00:00:00.00");
        assert_eq!(text(17, &[0], &ValueShape::Own, &[0, 0, 0, 1]), "1970-01-01 00:00:01");
    }

    #[test]
    fn texts() {
        assert_eq!(text(15, &[40, 0], &ValueShape::Text, b"\x02ab"), "ab");
        assert_eq!(text(15, &[0, 1], &ValueShape::Latin1, b"\x02\x00\xe9\x80"), "é€");
        assert_eq!(text(254, &[254, 4], &ValueShape::Bytes { length: 4 }, b"\x02\x01\xfe"), "01fe0000");
        // CHAR(255) of utf8mb4: 1020 bytes.
        assert_eq!(text(254, &[0xce, 0xfc], &ValueShape::Text, b"\x01\x00a"), "a");
        let names = || vec!["a".to_owned(), "b,c".to_owned(), "d".to_owned()];
        assert_eq!(text(254, &[247, 1], &ValueShape::Choice(names()), &[2]), "b,c");
        assert_eq!(text(254, &[247, 1], &ValueShape::Choice(names()), &[0]), "");
        assert_eq!(text(254, &[248, 1], &ValueShape::Set(names()), &[5]), "a,d");
        assert_eq!(text(252, &[2], &ValueShape::Text, b"\x01\x00x"), "x");
    }

    #[test]
    fn dates_and_times() {
        assert_eq!(
            text(10, &[], &ValueShape::Own, &(2026u32 << 9 | 0xb << 5 | 0x1d).to_le_bytes()[..3]),
            "2026-11-29"
        );
        assert_eq!(text(13, &[], &ValueShape::Own, &[126]), "2026");
        assert_eq!(text(13, &[], &ValueShape::Own, &[0]), "0000");
        let packed = 0x80_0000_0000u64 | (2026 * 13 + 2) << 22 | 3 << 17 | 4 << 12 | 5 << 6 | 6;
        let bytes = [&packed.to_be_bytes()[3..], &[12]].concat();
        assert_eq!(text(18, &[0], &ValueShape::Own, &bytes[..5]), "2026-02-03 04:05:06");
        assert_eq!(text(18, &[2], &ValueShape::Own, &bytes), "2026-02-03 04:05:06.12");
        assert_eq!(text(18, &[1], &ValueShape::Own, &bytes), "2026-02-03 04:05:06.1");
        assert_eq!(text(17, &[0], &ValueShape::Own, &1_000_000_000u32.to_be_bytes()), "2001-09-09 01:46:40");
        assert_eq!(text(17, &[0], &ValueShape::Own, &951_782_400u32.to_be_bytes()), "2000-02-29 00:00:00");
        assert_eq!(text(19, &[0], &ValueShape::Own, &[0x80 | 0x01, 0x02, 0x03]), "16:08:03");
        let negative = (1u32 << 23) - (1 << 12 | 2 << 6 | 3);
        assert_eq!(text(19, &[0], &ValueShape::Own, &negative.to_be_bytes()[1..]), "-01:02:03");
    }

    #[test]
    fn addresses() {
        assert_eq!(text(254, &[254, 4], &ValueShape::Inet4, b"\x04\x7f\0\0\x01"), "127.0.0.1");
        let mut bytes = vec![16];
        bytes.extend_from_slice(&[0; 15]);
        bytes.push(1);
        assert_eq!(text(254, &[254, 16], &ValueShape::Inet6, &bytes), "::1");
        assert_eq!(
            text(254, &[254, 16], &ValueShape::Uuid, b"\x03\x12\x34\x56"),
            "12345600-0000-0000-0000-000000000000"
        );
    }

    #[test]
    fn what_is_not_known_has_no_text() {
        let layout = ValueLayout::all(&[5], &[8]).unwrap()[0];
        assert_eq!(layout.text(&ValueShape::Refused, &[0; 8]), None);
        assert_eq!(layout.text(&ValueShape::Own, &[0; 8]), None);
        assert_eq!(ValueLayout::all(&[15], &[1]), None);
    }
}
