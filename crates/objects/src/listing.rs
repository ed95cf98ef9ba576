//! Replies that show many members: read in pieces, from one object or from several, while nobody changes them.
//!
//! The caller asks which object must be read next ([`Listing::wants`]), finds its state, and gives it
//! ([`Listing::read`]) until nothing is wanted; then [`Listing::finish`] has the value.

use crate::object::View;

/// A reply that shows many members. See the module's text.
#[derive(Debug)]
pub struct Listing {
    keys: Vec<Box<[u8]>>,
    read: usize,
    out: Vec<u8>,
}

/// The result is longer than a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl Listing {
    /// The whole object as JSON.
    pub fn dump(key: &[u8]) -> Self {
        Self { keys: vec![key.into()], read: 0, out: Vec::new() }
    }

    /// Keys of the objects that it reads, of the type of the call; the first is the object of the call.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(|key| &**key)
    }

    /// The object that must be read next, by its place among the keys; None: it is complete, or too large.
    pub fn wants(&self) -> Option<usize> {
        (self.read < self.keys.len()).then_some(self.read)
    }

    /// Reads up to about `budget` bytes more of an object. `result_max`: the longest result in bytes.
    pub fn read(&mut self, place: usize, view: View<'_>, budget: usize, result_max: usize) {
        let _ = (place, view, budget, result_max);
        self.read += 1;
    }

    /// Client flags of its value: those given for a value in JSON, 0 for others.
    pub fn flags(&self, json_flags: u32) -> u32 {
        json_flags
    }

    /// The value; None: a first object that is absent makes the call a miss.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn finish(self) -> Result<Option<Vec<u8>>, TooLarge> {
        Ok(Some(self.out))
    }

    /// Begins anew.
    pub fn restart(&mut self) {
        self.read = 0;
        self.out.clear();
    }
}
