//! Explanations of errors in files of keys and certificates.

use rustls::pki_types::pem;

use super::der::{INTEGER, OCTET_STRING, SEQUENCE, take, take_tagged};

/// The allowed sizes of RSA moduli, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

/// Unusable kinds of keys, by their object identifiers in DER.
const UNUSABLE: &[(&str, &[u8])] = &[
    ("P-521", &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23]),
    ("P-224", &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x21]),
    ("secp256k1", &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x0a]),
    ("Ed448", &[0x06, 0x03, 0x2b, 0x65, 0x71]),
    ("DSA", &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x01]),
    ("RSA-PSS", &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a]),
];

/// The first bytes of the object identifiers for encryption with a pass phrase (PKCS #5 and #12).
const ENCRYPTIONS: &[&[u8]] =
    &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05], &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c]];

/// The number of bytes of a PKCS#8 key within which its kind is found.
const KIND_WITHIN: usize = 32;

pub(super) const ENCRYPTED: &str = "is an encrypted key, and the server does not ask for a pass phrase; write it without one: \
     openssl pkey -in FILE -out NEW_FILE";
const CUT_OFF: &str = "is cut off, or is no private key";

/// Why a key cannot be used, if its bytes tell.
pub(super) fn problem_of_key(der: &[u8]) -> Option<String> {
    if let Some(kind) = unusable_kind(der) {
        return Some(format!(
            "is a {kind} key, which cannot be used; use RSA, ECDSA with P-256 or P-384, or Ed25519"
        ));
    }
    let Some(frame) = take_tagged(&mut &*der, SEQUENCE) else { return Some(CUT_OFF.to_owned()) };
    if let Some(kind) = take_tagged(&mut &*frame.contents, SEQUENCE)
        && ENCRYPTIONS.iter().any(|begin| kind.contents.get(2..).is_some_and(|id| id.starts_with(begin)))
    {
        return Some(ENCRYPTED.to_owned());
    }
    let bits = rsa_bits(frame.contents).filter(|bits| !RSA_BITS.contains(bits))?;
    Some(format!("is an RSA key of {bits} bits, which cannot be used; use one of 2048 to 4096 bits"))
}

/// Whether a key in PEM is marked as encrypted.
pub(super) fn is_encrypted(text: &[u8]) -> bool {
    let has = |part: &[u8]| memchr::memmem::find(text, part).is_some();
    has(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || has(b"Proc-Type: 4,ENCRYPTED")
}

/// The mistake in a text that should be PEM.
pub(super) fn problem_of_pem(error: &pem::Error) -> String {
    let shown = |bytes: &[u8]| {
        let text: String =
            String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).take(60).collect();
        text.trim().to_owned()
    };
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let name = shown(end_marker);
            let name = name.trim_matches('-');
            format!(
                "is cut off: the line -----END {}----- is missing",
                name.strip_prefix("END ").unwrap_or(name)
            )
        }
        pem::Error::IllegalSectionStart { line } => format!("is no PEM: the line {} is cut off", shown(line)),
        pem::Error::Base64Decode(_) => "is damaged: there are bytes in it that are no Base64".to_owned(),
        pem::Error::NoItemsFound => "it has no such section".to_owned(),
        other => other.to_string(),
    }
}

/// The kind of a key that OpenSSL knows and this server does not, found by its object identifier near the
/// beginning.
fn unusable_kind(der: &[u8]) -> Option<&'static str> {
    let beginning = &der[..der.len().min(KIND_WITHIN)];
    let is_in =
        |part: &[u8], identifier: &[u8]| part.windows(identifier.len()).any(|bytes| bytes == identifier);
    // A key without the frame of PKCS#8 has its curve at the end, after the number.
    UNUSABLE
        .iter()
        .find(|(_, identifier)| is_in(beginning, identifier) || is_sec1(der) && is_in(der, identifier))
        .map(|(kind, _)| *kind)
}

/// Whether a key is an `ECPrivateKey`: a sequence of version 1 and a number; other keys have version 0.
fn is_sec1(der: &[u8]) -> bool {
    der.windows(4).take(4).any(|bytes| bytes == [0x02, 0x01, 0x01, 0x04])
}

/// The size of an RSA modulus in bits. `key`: the contents of the key, with or without the frame of PKCS#8.
fn rsa_bits(mut key: &[u8]) -> Option<usize> {
    take_tagged(&mut key, INTEGER)?;
    let next = take(&mut key)?;
    match next.tag {
        INTEGER => {
            let zeros = next.contents.iter().take_while(|byte| **byte == 0).count();
            let number = &next.contents[zeros..];
            Some(number.len() * 8 - number.first()?.leading_zeros() as usize)
        }
        SEQUENCE if next.contents.starts_with(&RSA) => {
            let inner = take_tagged(&mut key, OCTET_STRING)?.contents;
            rsa_bits(take_tagged(&mut &*inner, SEQUENCE)?.contents)
        }
        _ => None,
    }
}

/// The object identifier of RSA keys.
const RSA: [u8; 11] = [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
