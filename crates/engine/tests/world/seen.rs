//! What a test sees of the world: what is stored, what waits, what connections know and have been sent.

use cattlegrid_engine::Cursor;
use cattlegrid_protocol::{Limits, Parsed, parse};

use super::World;

impl World {
    /// Number of replies of a connection that wait.
    pub(crate) fn waiting(&self, number: u64) -> usize {
        self.connections[&number].replies.waiting()
    }

    /// Must hold between two steps: each request that waits has a deadline.
    pub(crate) fn check(&self) {
        let mut keys = 0;
        for (number, connection) in &self.connections {
            keys += connection.session.waits().len();
            let waits = connection.replies.waiting() > connection.calls.len();
            if waits {
                let deadline = connection.replies.next_deadline_ms();
                assert!(deadline.is_some_and(|ms| ms + 10 >= self.ms), "{number} waits for ever");
            }
            assert_eq!(waits, !connection.session.waits().is_empty(), "{number} knows what it waits for");
        }
        assert_eq!(keys, self.engine.held());
    }

    /// The value that is stored under a key, whatever its standing.
    pub(crate) fn peek(&self, key: &str) -> Option<Vec<u8>> {
        self.peek_at(key).map(|(value, _)| value)
    }

    /// The flags of what is stored under a key.
    pub(crate) fn peek_flags(&self, key: &str) -> Option<u32> {
        self.peek_at(key).map(|(_, flags)| flags)
    }

    fn peek_at(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        let mut value = None;
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor.filter(|_| value.is_none()) {
            cursor = self.engine.list(from, 64, |item| {
                if item.key() == key.as_bytes() {
                    let mut bytes = Vec::new();
                    item.value().copy_to(&mut bytes);
                    value = Some((bytes, item.flags()));
                }
            });
        }
        value
    }

    /// Whether a connection has missed more keys than it remembers.
    pub(crate) fn forgets(&self, number: u64) -> bool {
        self.connections[&number].session.has_lost(self.ms)
    }

    /// Whether a connection remembers an open miss of this key.
    pub(crate) fn has_missed(&self, number: u64, key: &str) -> bool {
        let line = format!("mg {key}\r\n");
        let Parsed::Complete { request, .. } = parse(line.as_bytes(), &Limits::default()) else {
            panic!("{line}")
        };
        let hash = self.engine.hash(&request).unwrap();
        self.connections[&number].session.oldest(hash, self.ms).is_some()
    }

    /// Whether something was sent that was not taken yet.
    pub(crate) fn has_sent(&self, number: u64) -> bool {
        !self.connections[&number].sent.is_empty()
    }

    /// Takes what was sent, if anything.
    pub(crate) fn take_sent(&mut self, number: u64) -> Vec<u8> {
        std::mem::take(&mut self.connections.get_mut(&number).unwrap().sent)
    }

    /// A counter of the first rule.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let active = self.engine.shared().rules();
        let (_, state) = active.as_ref().unwrap().each().next().unwrap();
        let at = cattlegrid_herd::RuleCounters::NAMES.iter().position(|n| *n == name).expect(name);
        state.counters().values()[at]
    }
}
