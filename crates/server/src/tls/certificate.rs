//! The parts of a certificate of any version. rustls reads version 3 only; `openssl x509 -req` makes version
//! 1 if it is given no extensions.

use jiff::civil::DateTime;

use super::der::{
    BIT_STRING, CONTEXT_0, CONTEXT_3, Element, GENERALIZED_TIME, INTEGER, OCTET_STRING, SEQUENCE, UTC_TIME,
    take, take_tagged,
};

/// A parsed certificate. Names and algorithms are the contents of their sequences.
#[derive(Debug)]
pub(super) struct Certificate<'a> {
    /// The version, from 1.
    pub(super) version: u8,
    /// The signed part.
    pub(super) signed: &'a [u8],
    pub(super) algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
    pub(super) issuer: &'a [u8],
    /// The first and the last valid second, as Unix times.
    pub(super) valid: (i64, i64),
    /// The public key with its frame (`SubjectPublicKeyInfo`).
    pub(super) key_info: &'a [u8],
    /// The part after the key: in version 3, extensions.
    rest: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Parses a certificate in DER; None: it is malformed.
    pub(super) fn read(der: &'a [u8]) -> Option<Self> {
        let mut rest = take_tagged(&mut &*der, SEQUENCE)?.contents;
        let body = take_tagged(&mut rest, SEQUENCE)?;
        let algorithm = take_tagged(&mut rest, SEQUENCE)?.contents;
        let signature = bits(take_tagged(&mut rest, BIT_STRING)?)?;
        let mut fields = body.contents;
        let version = match take_tagged(&mut fields, CONTEXT_0) {
            None => 1,
            Some(version) => {
                take_tagged(&mut &*version.contents, INTEGER)?.contents.first()?.checked_add(1)?
            }
        };
        take_tagged(&mut fields, INTEGER)?;
        let inner_algorithm = take_tagged(&mut fields, SEQUENCE)?.contents;
        let issuer = take_tagged(&mut fields, SEQUENCE)?.contents;
        let mut validity = take_tagged(&mut fields, SEQUENCE)?.contents;
        let valid = (unix_time(take(&mut validity)?)?, unix_time(take(&mut validity)?)?);
        take_tagged(&mut fields, SEQUENCE)?;
        let key_info = take_tagged(&mut fields, SEQUENCE)?.whole;
        // A certificate of version 1 ends with its key.
        let is_whole = rest.is_empty() && inner_algorithm == algorithm && (version > 1 || fields.is_empty());
        is_whole.then_some(Self {
            version,
            signed: body.whole,
            algorithm,
            signature,
            issuer,
            valid,
            key_info,
            rest: fields,
        })
    }

    /// Whether the certificate has hosts or addresses that a client may compare with the server's.
    pub(super) fn has_names(&self) -> bool {
        let mut rest = self.rest;
        while let Some(element) = take(&mut rest) {
            if element.tag == CONTEXT_3 {
                return take_tagged(&mut &*element.contents, SEQUENCE)
                    .is_some_and(|all| has_alternative_names(all.contents));
            }
        }
        false
    }

    /// Whether the certificate is valid at this Unix time.
    pub(super) fn is_valid_at(&self, unix: u64) -> bool {
        i64::try_from(unix).is_ok_and(|unix| (self.valid.0..=self.valid.1).contains(&unix))
    }
}

/// Whether these extensions have alternative names.
fn has_alternative_names(mut extensions: &[u8]) -> bool {
    while let Some(extension) = take_tagged(&mut extensions, SEQUENCE) {
        let mut fields = extension.contents;
        if take(&mut fields).is_some_and(|name| name.contents == SUBJECT_ALT_NAME) {
            while let Some(field) = take(&mut fields) {
                if field.tag == OCTET_STRING {
                    return take_tagged(&mut &*field.contents, SEQUENCE)
                        .is_some_and(|names| !names.contents.is_empty());
                }
            }
        }
    }
    false
}

/// The object identifier 2.5.29.17.
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

/// The algorithm and the key in the contents of a `SubjectPublicKeyInfo`.
pub(super) fn public_key(mut key_info: &[u8]) -> Option<(&[u8], &[u8])> {
    let algorithm = take_tagged(&mut key_info, SEQUENCE)?.contents;
    Some((algorithm, bits(take_tagged(&mut key_info, BIT_STRING)?)?))
}

/// The bytes of a bit string without a partial byte.
fn bits(element: Element<'_>) -> Option<&[u8]> {
    element.contents.split_first().filter(|(unused, _)| **unused == 0).map(|(_, bytes)| bytes)
}

/// Parses `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ` (RFC 5280, 4.1.2.5) to a Unix time.
fn unix_time(element: Element<'_>) -> Option<i64> {
    let (digits, end) = element.contents.split_at_checked(element.contents.len().checked_sub(1)?)?;
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    let (year, rest) = match (element.tag, digits.len(), end) {
        (UTC_TIME, 12, b"Z") => {
            let year: i16 = digits[..2].parse().ok()?;
            (if year < 50 { year + 2000 } else { year + 1900 }, &digits[2..])
        }
        (GENERALIZED_TIME, 14, b"Z") => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| rest[at..at + 2].parse::<i8>().ok();
    let time = DateTime::new(year, part(0)?, part(2)?, part(4)?, part(6)?, part(8)?, 0).ok()?;
    Some(time.duration_since(EPOCH).as_secs())
}

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let time =
            |tag, text: &str| unix_time(Element { tag, contents: text.as_bytes(), whole: text.as_bytes() });
        for (tag, text, unix) in [
            (UTC_TIME, "700101000000Z", 0),
            (UTC_TIME, "491231235959Z", 2_524_607_999),
            (UTC_TIME, "500101000000Z", -631_152_000),
            (UTC_TIME, "240229120001Z", 1_709_208_001),
            (GENERALIZED_TIME, "20000301000000Z", 951_868_800),
            (GENERALIZED_TIME, "99991231235959Z", 253_402_300_799),
        ] {
            assert_eq!(time(tag, text), Some(unix), "{text}");
        }
        for text in [
            "",
            "Z",
            "7001010000Z",
            "701301000000Z",
            "700100000000Z",
            "700101000060Z",
            "70010100000aZ",
            "700101000000+",
        ] {
            assert_eq!(time(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(time(GENERALIZED_TIME, "700101000000Z"), None);
        assert_eq!(time(INTEGER, "700101000000Z"), None);
    }
}
