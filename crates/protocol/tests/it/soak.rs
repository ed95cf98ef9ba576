//! The code of the fuzz targets on a stable toolchain: valid streams that a seeded generator damages.
//! `SOAK_ITERATIONS=1000000 cargo nextest run --release -p cattlegrid-protocol soak` runs longer, `SOAK_SEED`
//! with another seed.

use crate::common::{LIMITS, check};

#[test]
fn soak() {
    let setting = |name, default| std::env::var(name).map_or(default, |n| n.parse().expect("a number"));
    let iterations = setting("SOAK_ITERATIONS", 3000u64);
    let mut random = Random(setting("SOAK_SEED", 1) | 1);
    for _ in 0..iterations {
        check(&stream(&mut random), &LIMITS);
    }
}

fn stream(random: &mut Random) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..=random.below(6) {
        stream.extend_from_slice(SEEDS[random.below(SEEDS.len())]);
    }
    for _ in 0..random.below(5) {
        if stream.is_empty() {
            break;
        }
        let at = random.below(stream.len());
        match random.below(5) {
            0 => stream[at] = random.below(256) as u8,
            1 => drop(stream.remove(at)),
            2 => stream.insert(at, b" \r\n\x80-0bkTM!"[random.below(11)]),
            3 => stream.truncate(at + 1),
            _ => {
                let piece = stream[at..(at + random.below(20)).min(stream.len())].to_vec();
                let to = random.below(stream.len());
                stream.splice(to..to, piece.repeat(1 + random.below(200)));
            }
        }
    }
    stream
}

const SEEDS: &[&[u8]] = &[
    b"get a\r\n",
    b"gets a bb ccc\r\n",
    b"gat 10 a b\r\n",
    b"set a 1 2 3\r\nabc\r\n",
    b"cas a 0 0 1 99 noreply\r\nx\r\n",
    b"append a 0 0 0\r\n\r\n",
    b"set a 0 0 5000\r\n",
    b"incr a 1\r\n",
    b"decr a 18446744073709551615 noreply\r\n",
    b"touch a -1\r\n",
    b"delete a noreply\r\n",
    b"mg Zm9v b k v t f s c h l u q Oabc\r\n",
    b"ms a 2 T30 F5 C9 E8 MS I\r\nzz\r\n",
    b"ms Zm9v 5000 b q\r\n",
    b"md a q I T30 x C1\r\n",
    b"ma a N30 J13 D5 MD v t c\r\n",
    b"me Zm9v b\r\n",
    b"mn\r\n",
    b"flush_all 10 noreply\r\n",
    b"stats settings\r\n",
    b"lru_crawler metadump all\r\n",
    b"GET / HTTP/1.1\r\n",
];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
}
