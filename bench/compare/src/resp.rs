//! The protocol of Redis: the part of RESP that gets and sets need.

use std::slice::ChunksExact;

use cattlegrid_load::{Element, Fault, Memcached, Wire};

/// Either protocol, so that one loop can load all servers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WireProtocol {
    Memcached,
    Resp,
}

impl Wire for WireProtocol {
    fn get(&self, keys: ChunksExact<'_, u8>, out: &mut Vec<u8>) {
        match self {
            Self::Memcached => Memcached.get(keys, out),
            Self::Resp => {
                out.extend_from_slice(format!("*{}\r\n", keys.len() + 1).as_bytes());
                bulk(if keys.len() == 1 { b"GET" } else { b"MGET" }, out);
                keys.for_each(|key| bulk(key, out));
            }
        }
    }

    fn set(&self, key: &[u8], flags: u32, ttl_seconds: u32, value_bytes: usize, out: &mut Vec<u8>) {
        match self {
            Self::Memcached => Memcached.set(key, flags, ttl_seconds, value_bytes, out),
            Self::Resp => {
                if ttl_seconds == 0 {
                    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
                    bulk(key, out);
                } else {
                    out.extend_from_slice(b"*4\r\n$5\r\nSETEX\r\n");
                    bulk(key, out);
                    bulk(ttl_seconds.to_string().as_bytes(), out);
                }
                out.extend_from_slice(format!("${value_bytes}\r\n").as_bytes());
            }
        }
    }

    fn end_set(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n");
    }

    fn read<'a>(
        &self,
        keys: usize,
        seen: usize,
        input: &'a [u8],
    ) -> Result<Option<(Element<'a>, usize)>, Fault> {
        match self {
            Self::Memcached => Memcached.read(keys, seen, input),
            Self::Resp => read(keys, input),
        }
    }
}

fn bulk(word: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn read(keys: usize, input: &[u8]) -> Result<Option<(Element<'_>, usize)>, Fault> {
    let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, start) = (&input[..end], end + 2);
    let unexpected = || Fault::Unexpected {
        asked: if keys == 0 { "SET" } else { "GET" },
        answer: String::from_utf8_lossy(line).into_owned(),
    };
    let number = || std::str::from_utf8(&line[1..]).ok()?.parse::<usize>().ok();
    match line.first() {
        Some(b'+') if keys == 0 => Ok(Some((Element::Stored, start))),
        Some(b'-') if keys == 0 && line.starts_with(b"-OOM") => Ok(Some((Element::Refused, start))),
        Some(b'*') if keys > 1 && number() == Some(keys) => Ok(Some((Element::Skip, start))),
        Some(b'$') if keys > 0 && line == b"$-1" => Ok(Some((Element::Next(None), start))),
        Some(b'$') if keys > 0 => {
            let bytes = number().ok_or_else(unexpected)?;
            if input.len() < start + bytes + 2 {
                return Ok(None);
            }
            Ok(Some((Element::Next(Some(&input[start..start + bytes])), start + bytes + 2)))
        }
        _ => Err(unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_as_redis_reads_them() {
        let mut out = Vec::new();
        WireProtocol::Resp.get(b"ab".chunks_exact(2), &mut out);
        WireProtocol::Resp.get(b"ab".chunks_exact(1), &mut out);
        WireProtocol::Resp.set(b"k", 0, 60, 1, &mut out);
        out.push(b'v');
        WireProtocol::Resp.end_set(&mut out);
        let wanted = "*2\r\n$3\r\nGET\r\n$2\r\nab\r\n*3\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n\
                      *4\r\n$5\r\nSETEX\r\n$1\r\nk\r\n$2\r\n60\r\n$1\r\nv\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    #[test]
    fn replies() {
        assert_eq!(read(0, b"+OK\r\n"), Ok(Some((Element::Stored, 5))));
        assert_eq!(read(0, b"-OOM x\r\n"), Ok(Some((Element::Refused, 8))));
        assert_eq!(read(2, b"*2\r\n$1"), Ok(Some((Element::Skip, 4))));
        assert_eq!(read(1, b"$-1\r\n"), Ok(Some((Element::Next(None), 5))));
        assert_eq!(read(1, b"$3\r\na\r\n\r\n"), Ok(Some((Element::Next(Some(b"a\r\n")), 9))));
        for part in [&b"$"[..], b"$3\r\n", b"$3\r\nabc\r"] {
            assert_eq!(read(1, part), Ok(None));
        }
        for (keys, reply) in
            [(0, &b"-ERR\r\n"[..]), (1, b"+OK\r\n"), (2, b"*3\r\n"), (1, b"$x\r\n"), (1, b"\r\n")]
        {
            assert!(read(keys, reply).is_err());
        }
    }
}
