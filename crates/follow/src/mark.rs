//! A number of texts, the same in all processes and releases.

/// FNV-1a of 64 bits. Source: G. Fowler, L. C. Noll, K.-P. Vo, <http://www.isthe.com/chongo/tech/comp/fnv/>.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Adds a text, with its end.
    pub fn add(&mut self, text: &str) {
        // A byte that is in no text ends each.
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The number of the texts so far.
    pub fn number(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_an_end() {
        let mark = |texts: &[&str]| {
            let mut mark = Fingerprint::default();
            for text in texts {
                mark.add(text);
            }
            mark.number()
        };
        assert_eq!(mark(&[]), 0xcbf2_9ce4_8422_2325);
        assert_ne!(mark(&["ab", "c"]), mark(&["a", "bc"]));
        assert_ne!(mark(&["a"]), mark(&["a", ""]));
        // Of all nodes of a fleet.
        assert_eq!(mark(&["shop"]), mark(&["shop"]));
    }
}
