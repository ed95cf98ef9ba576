//! The dictionary of a type: names of fields that are one byte in states.
//!
//! A name is added when a state with it is first written, and stays while the process runs. So all states of
//! the process can be read, whichever VM and version of the source wrote them. Whether a name is added
//! depends only on the name and on the free room, which never increases. So a table has the same bytes each
//! time.
//!
//! # Invariants
//! * A name has one number, and a number one name, for ever.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most names of a type.
pub(crate) const NAMES_MAX: usize = 128;
/// The longest name, in bytes.
const NAME_MAX: usize = 32;
/// The size of the hash table: a power of two.
const SLOTS: usize = 256;
const FREE: u8 = u8::MAX;

/// The names of a type.
#[derive(Debug)]
pub(crate) struct Names {
    texts: [OnceLock<Box<[u8]>>; NAMES_MAX],
    /// Numbers of names, at the position of the name's hash or after it.
    slots: [AtomicU8; SLOTS],
    /// The number of names; locked to add one.
    count: Mutex<usize>,
}

impl Names {
    /// An empty dictionary.
    pub(crate) const fn new() -> Self {
        Self {
            texts: [const { OnceLock::new() }; NAMES_MAX],
            slots: [const { AtomicU8::new(FREE) }; SLOTS],
            count: Mutex::new(0),
        }
    }

    /// The dictionary of a type, by the type's number: [`cattlegrid_objects::ObjectType::id`].
    pub(crate) fn of(type_id: u16) -> &'static Self {
        static ALL: Mutex<Vec<(u16, &'static Names)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, names)) = all.iter().find(|(id, _)| *id == type_id) {
            return names;
        }
        let names: &'static Self = Box::leak(Box::new(Self::new()));
        all.push((type_id, names));
        names
    }

    /// The name with this number.
    pub(crate) fn get(&self, number: u8) -> Option<&[u8]> {
        self.texts.get(usize::from(number))?.get().map(|name| &**name)
    }

    /// The number of a name, which is added if it is new. None: the name is not suitable, or there is no
    /// room.
    pub(crate) fn number(&self, name: &[u8]) -> Option<u8> {
        let hash = rapidhash::v3::rapidhash_v3(name) as usize;
        self.find(name, hash).ok().or_else(|| self.add(name, hash))
    }

    /// The number of a name, or the free position for it.
    fn find(&self, name: &[u8], hash: usize) -> Result<u8, usize> {
        let mut slot = hash % SLOTS;
        loop {
            let number = self.slots[slot].load(Ordering::Acquire);
            if number == FREE {
                return Err(slot);
            }
            if self.get(number) == Some(name) {
                return Ok(number);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    #[cold]
    fn add(&self, name: &[u8], hash: usize) -> Option<u8> {
        if !can_be(name) {
            return None;
        }
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        match self.find(name, hash) {
            Ok(number) => Some(number),
            Err(_) if *count == NAMES_MAX => None,
            Err(slot) => {
                let number = *count as u8;
                self.texts[*count].set(name.into()).ok()?;
                *count += 1;
                self.slots[slot].store(number, Ordering::Release);
                Some(number)
            }
        }
    }
}

/// Whether the name has the form of a name in sources: letters, digits and `_`, and no digit first.
fn can_be(name: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    name.len() <= NAME_MAX
        && name.first().is_some_and(is_letter)
        && name.iter().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number() {
        let names = Names::new();
        assert_eq!(names.number(b"limit"), Some(0));
        assert_eq!(names.number(b"count"), Some(1));
        assert_eq!(names.number(b"limit"), Some(0));
        assert_eq!(
            (names.get(0), names.get(1), names.get(2)),
            (Some(&b"limit"[..]), Some(&b"count"[..]), None)
        );
    }

    #[test]
    fn what_is_no_name_of_a_source_stays_out() {
        let names = Names::new();
        for no in [&b""[..], b"1a", b"a b", b"a:b", b"\xff", &[b'a'; NAME_MAX + 1], b"user-1"] {
            assert_eq!(names.number(no), None, "{no:?}");
        }
        assert_eq!(names.number(&[b'a'; NAME_MAX]), Some(0));
        assert_eq!(names.number(b"_1"), Some(1));
    }

    #[test]
    fn a_full_dictionary_takes_no_more() {
        let names = Names::new();
        let name = |number: usize| format!("name{number}");
        for number in 0..NAMES_MAX {
            assert_eq!(names.number(name(number).as_bytes()), Some(number as u8));
        }
        assert_eq!(names.number(b"more"), None);
        for number in 0..NAMES_MAX {
            assert_eq!(names.number(name(number).as_bytes()), Some(number as u8));
            assert_eq!(names.get(number as u8), Some(name(number).as_bytes()));
        }
        assert_eq!(names.get(NAMES_MAX as u8), None);
    }

    #[test]
    fn threads_agree() {
        let names = Names::new();
        let all: Vec<Vec<Option<u8>>> = std::thread::scope(|scope| {
            let run = || (0..150).map(|n| names.number(format!("n{n}").as_bytes())).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for number in 0..NAMES_MAX as u8 {
            let name = names.get(number).unwrap();
            assert_eq!(names.number(name), Some(number));
        }
        for (place, number) in all.iter().flatten().enumerate() {
            if let Some(number) = number {
                assert_eq!(names.get(*number), Some(format!("n{}", place % 150).as_bytes()));
            }
        }
    }
}
