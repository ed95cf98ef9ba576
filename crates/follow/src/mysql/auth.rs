//! Ways to sign in: `mysql_native_password`, `caching_sha2_password` with its fast and its full way, and
//! `mysql_clear_password`, only over an encrypted connection.
//!
//! Sources: MySQL's "Client/Server Protocol", authentication phase; RFC 8017 for RSAES-OAEP.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY as SHA1, SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a SHA-1.
const SHA1_BYTES: usize = 20;

/// `SHA1(password) XOR SHA1(salt + SHA1(SHA1(password)))`.
pub(crate) fn native(password: &str, salt: &[u8]) -> Vec<u8> {
    let once = digest(&SHA1, password.as_bytes());
    let twice = digest(&SHA1, once.as_ref());
    let mut context = Context::new(&SHA1);
    context.update(salt);
    context.update(twice.as_ref());
    xor(once.as_ref(), context.finish().as_ref())
}

/// `SHA256(password) XOR SHA256(SHA256(SHA256(password)) + salt)`.
pub(crate) fn sha2(password: &str, salt: &[u8]) -> Vec<u8> {
    let once = digest(&SHA256, password.as_bytes());
    let twice = digest(&SHA256, once.as_ref());
    let mut context = Context::new(&SHA256);
    context.update(twice.as_ref());
    context.update(salt);
    xor(once.as_ref(), context.finish().as_ref())
}

fn xor(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right.iter().cycle()).map(|(left, right)| left ^ right).collect()
}

/// The password, hidden by the salt and encrypted for the server's public key (PEM): what
/// `caching_sha2_password` asks for on a connection that is not encrypted. `None`: no key that can be read.
pub(crate) fn encrypted(password: &str, salt: &[u8], key: &[u8]) -> Option<Vec<u8>> {
    let mut ended = password.as_bytes().to_vec();
    ended.push(0);
    let hidden = xor(&ended, salt);
    let der = der_of_pem(key)?;
    let (modulus, exponent) = public_key(&der)?;
    let mut seed = [0; SHA1_BYTES];
    SystemRandom::new().fill(&mut seed).ok()?;
    let block = oaep(&hidden, modulus.len(), &seed)?;
    Some(power(&block, exponent, modulus))
}

/// EME-OAEP with SHA-1 and an empty label.
fn oaep(message: &[u8], bytes: usize, seed: &[u8; SHA1_BYTES]) -> Option<Vec<u8>> {
    let room = bytes.checked_sub(2 * SHA1_BYTES + 2)?;
    if message.len() > room {
        return None;
    }
    let mut data = digest(&SHA1, b"").as_ref().to_vec();
    data.resize(SHA1_BYTES + room - message.len(), 0);
    data.push(1);
    data.extend_from_slice(message);
    let data = xor(&data, &mask(seed, data.len()));
    let hidden_seed = xor(seed, &mask(&data, SHA1_BYTES));
    Some([&[0], hidden_seed.as_slice(), &data].concat())
}

/// MGF1 with SHA-1.
fn mask(seed: &[u8], bytes: usize) -> Vec<u8> {
    let mut mask = Vec::with_capacity(bytes + SHA1_BYTES);
    for counter in 0u32.. {
        if mask.len() >= bytes {
            break;
        }
        let mut context = Context::new(&SHA1);
        context.update(seed);
        context.update(&counter.to_be_bytes());
        mask.extend_from_slice(context.finish().as_ref());
    }
    mask.truncate(bytes);
    mask
}

fn der_of_pem(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?;
    let body = text.split_once("-----BEGIN PUBLIC KEY-----")?.1.split_once("-----END")?.0;
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for letter in body.bytes().filter(|letter| !letter.is_ascii_whitespace() && *letter != b'=') {
        let digit = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

/// Modulus and exponent of a `SubjectPublicKeyInfo` of RSA.
fn public_key(der: &[u8]) -> Option<(&[u8], u64)> {
    let (info, _) = element(der, 0x30)?;
    let (_, rest) = element(info, 0x30)?;
    let (bits, _) = element(rest, 0x03)?;
    let (key, _) = element(bits.strip_prefix(&[0])?, 0x30)?;
    let (modulus, rest) = element(key, 0x02)?;
    let (exponent, _) = element(rest, 0x02)?;
    let modulus = modulus.strip_prefix(&[0]).unwrap_or(modulus);
    (exponent.len() <= 8 && (64..=1024).contains(&modulus.len()))
        .then(|| (modulus, exponent.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))))
}

/// The content of a DER element with this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// `base` to the power of `exponent`, modulo `modulus`: numbers with their highest byte first, of as many
/// bytes as the modulus.
fn power(base: &[u8], exponent: u64, modulus: &[u8]) -> Vec<u8> {
    let (modulus_limbs, base) = (limbs(modulus), limbs(base));
    let mut result = vec![0u32; modulus_limbs.len()];
    result[0] = 1;
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        result = product(&result, &result, &modulus_limbs);
        if exponent >> bit & 1 == 1 {
            result = product(&result, &base, &modulus_limbs);
        }
    }
    let mut bytes: Vec<u8> = result.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect();
    bytes.drain(..bytes.len() - modulus.len());
    bytes
}

fn limbs(bytes: &[u8]) -> Vec<u32> {
    bytes.rchunks(4).map(|chunk| chunk.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))).collect()
}

/// `left * right` modulo `modulus`, by doubling and adding: a few milliseconds for 2048 bits, once a
/// connection.
fn product(left: &[u32], right: &[u32], modulus: &[u32]) -> Vec<u32> {
    let mut sum = vec![0u32; modulus.len()];
    for limb in right.iter().rev() {
        for bit in (0..u32::BITS).rev() {
            let doubled = sum.clone();
            add(&mut sum, &doubled, modulus);
            if limb >> bit & 1 == 1 {
                add(&mut sum, left, modulus);
            }
        }
    }
    sum
}

/// Adds a number below the modulus.
fn add(sum: &mut [u32], more: &[u32], modulus: &[u32]) {
    let mut carry = 0;
    for (own, more) in sum.iter_mut().zip(more) {
        let wide = u64::from(*own) + u64::from(*more) + carry;
        *own = wide as u32;
        carry = wide >> 32;
    }
    let is_below = sum.iter().rev().lt(modulus.iter().rev());
    if carry == 1 || !is_below {
        let mut borrow = 0;
        for (own, less) in sum.iter_mut().zip(modulus) {
            let wide = i64::from(*own) - i64::from(*less) - borrow;
            *own = (wide & 0xffff_ffff).unsigned_abs() as u32;
            borrow = i64::from(wide < 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_powers() {
        // The textbook's key: 61 * 53, exponent 17.
        assert_eq!(power(&[0, 65], 17, &[0x0c, 0xa1]), 2790u16.to_be_bytes());
        let prime = 4_294_967_291u64; // Above 2^31, so that sums carry.
        let expected = (0..65_537).fold(1u64, |sum, _| sum * 4_000_000_007 % prime);
        let found = power(&4_000_000_007u32.to_be_bytes(), 65_537, &(prime as u32).to_be_bytes());
        assert_eq!(found, (expected as u32).to_be_bytes());
    }

    #[test]
    fn a_message_that_fits_is_padded() {
        let block = oaep(b"secret\0", 256, &[7; SHA1_BYTES]).unwrap();
        assert_eq!((block.len(), block[0]), (256, 0));
        let seed = xor(&block[1..21], &mask(&block[21..], SHA1_BYTES));
        assert_eq!(seed, [7; SHA1_BYTES]);
        let data = xor(&block[21..], &mask(&seed, 235));
        assert!(data.ends_with(b"\0\x01secret\0") && data.starts_with(digest(&SHA1, b"").as_ref()));
        assert_eq!(oaep(&[1; 300], 256, &[7; SHA1_BYTES]), None);
    }

    #[test]
    fn scrambles() {
        // What the server computes from what it keeps gives the hash of the password back.
        let salt = *b"01234567890123456789";
        let kept = digest(&SHA1, digest(&SHA1, b"secret").as_ref());
        let mask = digest(&SHA1, &[salt.as_slice(), kept.as_ref()].concat());
        let once = xor(&native("secret", &salt), mask.as_ref());
        assert_eq!(digest(&SHA1, &once).as_ref(), kept.as_ref());
        let kept = digest(&SHA256, digest(&SHA256, b"secret").as_ref());
        let mask = digest(&SHA256, &[kept.as_ref(), salt.as_slice()].concat());
        let once = xor(&sha2("secret", &salt), mask.as_ref());
        assert_eq!(digest(&SHA256, &once).as_ref(), kept.as_ref());
    }
}
