//! The parts of a certificate that are needed to verify it as libpq does: rustls reads version 3 only,
//! refuses the certificate of an authority as a server's, and knows no common name. Source: RFC 5280, X.690.

use std::net::IpAddr;

use jiff::civil::{Date, Time};
use jiff::tz::Offset;

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// 1.3.6.1.5.5.7.3.1, and any purpose, 2.5.29.37.0.
const SERVER_AUTH: [&[u8]; 2] = [&[0x2b, 6, 1, 5, 5, 7, 3, 1], &[0x55, 0x1d, 0x25, 0]];

/// A part that is not as the standard says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedDer;

/// A certificate. Slices are DER.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Certificate<'a> {
    /// The part that is signed.
    pub(crate) signed: &'a [u8],
    pub(crate) signature_algorithm: &'a [u8],
    pub(crate) signature: &'a [u8],
    pub(crate) is_v3: bool,
    pub(crate) issuer: &'a [u8],
    pub(crate) subject: &'a [u8],
    /// Seconds since 1970, both included.
    pub(crate) valid: (i64, i64),
    pub(crate) key_algorithm: &'a [u8],
    pub(crate) key: &'a [u8],
    /// Whether it is an authority's. None: it does not say.
    pub(crate) is_ca: Option<bool>,
    /// Whether it may be a TLS server's, by the uses that it names.
    pub(crate) is_for_servers: bool,
    /// Whether it may sign certificates, by the uses that it names.
    pub(crate) may_sign: bool,
    /// Whether the certificate has constraints that are not known here.
    pub(crate) has_unknown_limits: bool,
    /// DNS names of the subject's alternative names.
    pub(crate) dns: Vec<&'a [u8]>,
    pub(crate) ip: Vec<&'a [u8]>,
    /// The first common name.
    pub(crate) common_name: Option<&'a [u8]>,
}

/// Reads values one after the other.
#[derive(Debug, Clone, Copy)]
struct DerInput<'a>(&'a [u8]);

impl<'a> DerInput<'a> {
    /// The next value: its tag, its content, and the whole.
    fn any(&mut self) -> Result<(u8, &'a [u8], &'a [u8]), MalformedDer> {
        let all = self.0;
        let (tag, first) = (*all.first().ok_or(MalformedDer)?, *all.get(1).ok_or(MalformedDer)?);
        let (length, header) = match first {
            ..=0x7f => (usize::from(first), 2),
            0x81..=0x83 => {
                let count = usize::from(first & 0x7f);
                let bytes = all.get(2..2 + count).ok_or(MalformedDer)?;
                (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), 2 + count)
            }
            _ => return Err(MalformedDer),
        };
        let (whole, rest) = all.split_at_checked(header + length).ok_or(MalformedDer)?;
        self.0 = rest;
        Ok((tag, &whole[header..], whole))
    }

    fn next(&mut self, expected: u8) -> Result<&'a [u8], MalformedDer> {
        match self.any()? {
            (tag, content, _) if tag == expected => Ok(content),
            _ => Err(MalformedDer),
        }
    }

    fn optional(&mut self, expected: u8) -> Result<Option<&'a [u8]>, MalformedDer> {
        if self.0.first() == Some(&expected) { self.next(expected).map(Some) } else { Ok(None) }
    }

    /// A bit string of whole bytes.
    fn bits(&mut self) -> Result<&'a [u8], MalformedDer> {
        match self.next(BIT_STRING)?.split_first() {
            Some((0, bytes)) => Ok(bytes),
            _ => Err(MalformedDer),
        }
    }

    fn time(&mut self) -> Result<i64, MalformedDer> {
        let (tag, text, _) = self.any()?;
        let digits = text.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit));
        let number = |part: &[u8]| part.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        let (year, rest) = match (tag, digits.ok_or(MalformedDer)?) {
            (UTC_TIME, digits) if digits.len() == 12 => {
                let year = number(&digits[..2]);
                (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
            }
            (GENERALIZED_TIME, digits) if digits.len() == 14 => (number(&digits[..4]), &digits[4..]),
            _ => return Err(MalformedDer),
        };
        let part = |at: usize| number(&rest[2 * at..2 * at + 2]);
        let day = part(1);
        if !(1..=31).contains(&day) {
            return Err(MalformedDer);
        }
        let start = day_start(year, part(0), day).ok_or(MalformedDer)?;
        Ok(start + part(2) * 3600 + part(3) * 60 + part(4))
    }
}

/// The Unix time, in seconds, of the beginning of a day. A day after the month's last one counts into the
/// next month.
fn day_start(year: i64, month: i64, day: i64) -> Option<i64> {
    let first = Date::new(year.try_into().ok()?, month.try_into().ok()?, 1).ok()?;
    let first = Offset::UTC.to_timestamp(first.to_datetime(Time::midnight())).ok()?;
    Some(first.as_second() + (day - 1) * 86_400)
}

impl<'a> Certificate<'a> {
    pub(crate) fn parse(der: &'a [u8]) -> Result<Self, MalformedDer> {
        let mut outer = DerInput(DerInput(der).next(SEQUENCE)?);
        let (tag, body, signed) = outer.any()?;
        if tag != SEQUENCE {
            return Err(MalformedDer);
        }
        let signature_algorithm = outer.next(SEQUENCE)?;
        let signature = outer.bits()?;
        let mut body = DerInput(body);
        let version = body.optional(0xa0)?.map(|version| DerInput(version).next(INTEGER)).transpose()?;
        body.next(INTEGER)?;
        body.next(SEQUENCE)?;
        let issuer = body.next(SEQUENCE)?;
        let mut times = DerInput(body.next(SEQUENCE)?);
        let valid = (times.time()?, times.time()?);
        let subject = body.next(SEQUENCE)?;
        let mut key = DerInput(body.next(SEQUENCE)?);
        let (key_algorithm, key) = (key.next(SEQUENCE)?, key.bits()?);
        let mut read = Self {
            signed,
            signature_algorithm,
            signature,
            is_v3: version == Some(&[2]),
            issuer,
            subject,
            valid,
            key_algorithm,
            key,
            is_ca: None,
            is_for_servers: true,
            may_sign: true,
            has_unknown_limits: false,
            dns: Vec::new(),
            ip: Vec::new(),
            common_name: common_name(subject)?,
        };
        while let Some((tag, content, _)) = (!body.0.is_empty()).then(|| body.any()).transpose()? {
            if tag == 0xa3 {
                read.extensions(DerInput(DerInput(content).next(SEQUENCE)?))?;
            }
        }
        Ok(read)
    }

    fn extensions(&mut self, mut all: DerInput<'a>) -> Result<(), MalformedDer> {
        while !all.0.is_empty() {
            let mut own = DerInput(all.next(SEQUENCE)?);
            let id = own.next(OBJECT_ID)?;
            let is_critical = own.optional(0x01)?.is_some_and(|value| value != [0]);
            let mut value = DerInput(own.next(OCTET_STRING)?);
            match id {
                // Key usage: digital signature, key encipherment or key agreement; certificates' signatures.
                [0x55, 0x1d, 15] => {
                    let bits = value.next(BIT_STRING)?.get(1).copied().unwrap_or(0);
                    self.is_for_servers &= bits & 0xa8 != 0;
                    self.may_sign = bits & 0x04 != 0;
                }
                // Alternative names.
                [0x55, 0x1d, 17] => {
                    let mut names = DerInput(value.next(SEQUENCE)?);
                    while !names.0.is_empty() {
                        match names.any()? {
                            (0x82, name, _) => self.dns.push(name),
                            (0x87, address, _) => self.ip.push(address),
                            _ => {}
                        }
                    }
                }
                // Basic constraints.
                [0x55, 0x1d, 19] => {
                    let ca = DerInput(value.next(SEQUENCE)?).optional(0x01)?;
                    self.is_ca = Some(ca.is_some_and(|ca| ca != [0]));
                }
                // Extended key usage.
                [0x55, 0x1d, 37] => {
                    let (mut uses, mut is_named) = (DerInput(value.next(SEQUENCE)?), false);
                    while !uses.0.is_empty() {
                        is_named |= SERVER_AUTH.contains(&uses.next(OBJECT_ID)?);
                    }
                    self.is_for_servers &= is_named;
                }
                // Constraints of names, of whatever weight.
                [0x55, 0x1d, 30] => self.has_unknown_limits = true,
                _ => self.has_unknown_limits |= is_critical,
            }
        }
        Ok(())
    }

    /// Whether it names itself as its issuer.
    pub(crate) fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Whether it is for this host, as libpq decides: an IP address is compared with the addresses, then with
    /// the names as text; the common name counts only if there is no alternative name of the host's kind.
    pub(crate) fn is_for_host(&self, host: &str) -> bool {
        let address: Option<IpAddr> = host.parse().ok();
        let bytes = match &address {
            Some(IpAddr::V4(v4)) => &v4.octets()[..],
            Some(IpAddr::V6(v6)) => &v6.octets()[..],
            None => &[],
        };
        let is_named = self.dns.iter().any(|name| is_name_of(name, host));
        let is_addressed = address.is_some() && self.ip.contains(&bytes);
        let by_common_name = if address.is_some() { self.ip.is_empty() } else { self.dns.is_empty() };
        let is_common = || self.common_name.is_some_and(|name| is_name_of(name, host));
        is_named || is_addressed || by_common_name && is_common()
    }
}

/// Whether a name of a certificate is that of the host: without regard to case, and a `*` as the first label
/// is any one label.
fn is_name_of(name: &[u8], host: &str) -> bool {
    if name.contains(&0) {
        return false;
    }
    let host = host.as_bytes();
    let is_same = name.eq_ignore_ascii_case(host);
    let by_wildcard = name.len() >= 3 && name.starts_with(b"*.") && {
        let first_dot = host.iter().position(|byte| *byte == b'.');
        first_dot.is_some_and(|dot| dot > 0 && host[dot..].eq_ignore_ascii_case(&name[1..]))
    };
    is_same || by_wildcard
}

fn common_name(subject: &[u8]) -> Result<Option<&[u8]>, MalformedDer> {
    let mut sets = DerInput(subject);
    while !sets.0.is_empty() {
        let mut set = DerInput(sets.next(SET)?);
        while !set.0.is_empty() {
            let mut pair = DerInput(set.next(SEQUENCE)?);
            if pair.next(OBJECT_ID)? == COMMON_NAME {
                return pair.any().map(|(_, text, _)| Some(text));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_of_the_calendar() {
        for (date, expected) in [
            ((1970, 1, 1), 0),
            ((2000, 2, 29), 11_016),
            ((2000, 2, 30), 11_017),
            ((2000, 3, 1), 11_017),
            ((2026, 11, 28), 20_785),
            ((9999, 12, 31), 2_932_896),
        ] {
            assert_eq!(day_start(date.0, date.1, date.2), Some(expected * 86_400), "{date:?}");
        }
        let mut time = DerInput(b"\x17\x0d491231235959Z\x18\x0f20500101000000Z");
        let (before, after) = (time.time().unwrap(), time.time().unwrap());
        assert_eq!((before, after), (2_524_607_999, 2_524_608_000));
        for wrong in
            [&b"\x17\x0d4912312359591"[..], b"\x17\x0c49123123595Z", b"\x17\x0d491331235959Z", b"\x17\x0d"]
        {
            assert_eq!(DerInput(wrong).time(), Err(MalformedDer), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_hosts() {
        for (name, host) in
            [("db.x", "DB.X"), ("*.x.y", "a.x.y"), ("*.x.y", "A.X.Y"), ("10.0.0.1", "10.0.0.1")]
        {
            assert!(is_name_of(name.as_bytes(), host), "{name} {host}");
        }
        for (name, host) in [
            ("*.x.y", "b.a.x.y"),
            ("*.x.y", "x.y"),
            ("*.x.y", ".x.y"),
            ("*", "a"),
            ("a*.x", "ab.x"),
            ("*.", "a."),
            ("a\0", "a\0"),
        ] {
            assert!(!is_name_of(name.as_bytes(), host), "{name} {host}");
        }
    }
}
