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
    fold: Option<(Fold, Finish)>,
    folded: Vec<u8>,
    /// The first object is absent.
    is_absent: bool,
}

/// Takes a state to what was made of those before it.
type Fold = fn(&mut Vec<u8>, View<'_>);
/// Writes the value.
type Finish = fn(&[u8], &mut Vec<u8>);

/// The result is longer than a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl Listing {
    /// The whole object as JSON.
    pub fn dump(key: &[u8]) -> Self {
        Self::new(vec![key.into()], None)
    }

    /// What `finish` writes after `fold` has taken the states of all these objects, each whole and in their order. `keys`:
    /// at least the object of the call, which is the first.
    pub fn fold(keys: Vec<Box<[u8]>>, fold: Fold, finish: Finish) -> Self {
        Self::new(keys, Some((fold, finish)))
    }

    fn new(keys: Vec<Box<[u8]>>, fold: Option<(Fold, Finish)>) -> Self {
        Self { keys, read: 0, out: Vec::new(), fold, folded: Vec::new(), is_absent: false }
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
        let _ = (budget, result_max);
        self.is_absent |= place == 0 && matches!(view, View::Absent);
        self.read += 1;
        if let Some((fold, finish)) = self.fold {
            fold(&mut self.folded, view);
            if self.read == self.keys.len() {
                finish(&self.folded, &mut self.out);
            }
        }
    }

    /// The value; None: a first object that is absent makes the call a miss.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn finish(self) -> Result<Option<Vec<u8>>, TooLarge> {
        Ok((!self.is_absent).then_some(self.out))
    }

    /// Begins anew.
    pub fn restart(&mut self) {
        self.read = 0;
        self.out.clear();
        self.folded.clear();
        self.is_absent = false;
    }
}
