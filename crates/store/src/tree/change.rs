//! Inserts and removals in a tree, and the pages that they need or give back.
//!
//! A page that an entry does not fit in is divided in two: in the middle, or behind its last entry where the
//! new entry is the tree's last, so that ascending keys fill their pages. The page above gets an entry for
//! the new page and may be divided likewise, up to the root. What a removal leaves below half of a page joins
//! a neighbour where both take seven eighths of a page at most, so that the next insert does not divide them
//! again; an empty page always goes.

use std::cmp::Ordering;

use super::node::{self, ENTRY_MAX, EntryContent, ROOM, TreePage};
use super::{Tree, TreeFull};
use crate::huge::HugeValue;
use crate::memory::PAGE_BYTES;

/// A page with fewer bytes of entries joins a neighbour.
const LOW: usize = ROOM / 2;
/// Most bytes of two pages that become one.
const JOINED_MAX: usize = ROOM / 8 * 7;
/// One page of this many may be spare.
const PAGES_PER_SPARE: usize = 64;
/// Levels that a tree can have: its pages have 32-bit numbers, and of any two neighbours one has two pages
/// below it at least.
const LEVELS_MAX: usize = 64;

/// The way from the root to a leaf.
struct LeafPath {
    /// The pages above the leaf from the root on, each with the entry that the way takes.
    steps: [(u32, u16); LEVELS_MAX],
    len: usize,
    leaf: u32,
}

impl LeafPath {
    /// The page at a depth, where the root has depth 0.
    fn page(&self, depth: usize) -> u32 {
        if depth == self.len { self.leaf } else { self.steps[depth].0 }
    }

    fn renumber(&mut self, from: u32, to: u32) {
        for step in self.steps[..self.len].iter_mut().filter(|step| step.0 == from) {
            step.0 = to;
        }
        if self.leaf == from {
            self.leaf = to;
        }
    }
}

impl Tree {
    /// Keeps pages in reserve for this many inserts with keys and values of any length up to
    /// [`Tree::KEY_MAX`] and [`Tree::VALUE_INLINE_MAX`]: they cannot fail, removals among them. A single
    /// insert needs no reserve: it fails before it changes anything. The reserve lasts until
    /// [`Tree::release_reserve`].
    ///
    /// # Errors
    /// [`TreeFull`].
    pub fn reserve(&mut self, inserts: usize) -> Result<(), TreeFull> {
        self.reserve_for(inserts, Self::KEY_MAX, Self::VALUE_INLINE_MAX)
    }

    /// Reserves pages for `inserts` entries with keys and values of at most these lengths in bytes, fewer
    /// than [`Tree::reserve`]: 100 members of 20 bytes divide a small tree's pages three times and not 100
    /// times.
    ///
    /// # Errors
    /// [`TreeFull`].
    pub fn reserve_for(&mut self, inserts: usize, key: usize, value: usize) -> Result<(), TreeFull> {
        if self.used == 0 {
            self.plant()?;
        }
        self.add_spares(self.worst_case(inserts, key, value))?;
        self.holds_reserve = true;
        Ok(())
    }

    /// Gives what is in reserve back.
    pub fn release_reserve(&mut self) {
        self.holds_reserve = false;
        self.trim();
    }

    /// Puts a value under a key. True: the key is new. A key longer than [`Tree::KEY_MAX`] is the caller's to
    /// refuse.
    ///
    /// # Errors
    /// [`TreeFull`]: nothing has changed.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TreeFull> {
        debug_assert!(key.len() <= Self::KEY_MAX, "the caller refuses longer keys");
        if key.len() > Self::KEY_MAX {
            return Err(TreeFull { bytes: 0 });
        }
        if self.used == 0 {
            self.plant()?;
        }
        if node::space(0, key.len(), value.len()) <= ENTRY_MAX {
            return self.put(key, EntryContent::Here(value), value.len());
        }
        let full = TreeFull { bytes: value.len() };
        let huge = HugeValue::new(self.pages.memory(), &[value]).ok_or(full)?;
        self.check_bound(huge.held_bytes())?;
        let number = self.values.add(huge);
        let done = self.put(key, EntryContent::Elsewhere(number), value.len());
        done.map_err(|full| {
            self.values.remove(number);
            TreeFull { bytes: full.bytes + value.len() }
        })
    }

    /// Removes a key. False: it was not there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if self.len == 0 {
            return false;
        }
        let mut path = self.path_to(key);
        let Some(index) = self.node(path.leaf).find(key) else { return false };
        self.let_go(path.leaf, index);
        self.node_mut(path.leaf).remove(index);
        self.len -= 1;
        self.bytes -= key.len() as u64;
        self.count_on(&path, path.len, false);
        if self.node(path.leaf).used() < LOW {
            self.rebalance(&mut path);
        }
        true
    }

    /// Gives up to `pages` of its pages back (one at least, and a long value whole), whatever is in them: the
    /// map is empty from the first call on. True: none is left, and it can be dropped at no cost.
    pub fn take_apart(&mut self, pages: usize) -> bool {
        (self.used, self.inner, self.root) = (0, 0, 0);
        (self.len, self.bytes, self.longest_key, self.largest_entry) = (0, 0, 0, 0);
        self.holds_reserve = false;
        let mut left = pages.max(1);
        while left > 0
            && let Some(held) = self.values.pop()
        {
            left = left.saturating_sub(held / PAGE_BYTES);
        }
        self.pages.shrink(self.pages.len().saturating_sub(left));
        self.pages.len() == 0 && self.values.len() == 0
    }

    /// Gives it a root, when it has none yet, or has been taken apart.
    pub(super) fn plant(&mut self) -> Result<(), TreeFull> {
        while !self.take_apart(usize::MAX) {}
        self.add_spares(1)?;
        self.root = self.take_page(0);
        Ok(())
    }

    /// Puts an entry, of whose value `len` bytes count.
    fn put(&mut self, key: &[u8], content: EntryContent<'_>, len: usize) -> Result<bool, TreeFull> {
        let mut path = self.path_to(key);
        let node = self.node(path.leaf);
        let space = node::space(0, key.len(), content.len());
        let (index, old) = match node.search(key) {
            Ok(index) => (index, Some(node.space(index))),
            Err(index) => (index, None),
        };
        let cuts = if node.free() + old.unwrap_or(0) >= space {
            Vec::new()
        } else {
            self.plan(&path, &GrownPage { old: node, at: index, replaces: old.is_some(), key, content })
        };
        let is_new_root = cuts.len() > path.len;
        self.add_spares(cuts.len() + usize::from(is_new_root))?;
        // Nothing fails from here on.
        self.longest_key = self.longest_key.max(key.len());
        self.largest_entry = self.largest_entry.max(space);
        self.bytes += len as u64;
        let is_new = old.is_none();
        if is_new {
            self.len += 1;
            self.bytes += key.len() as u64;
        } else if let EntryContent::Here(value) = content
            && let EntryContent::Here(own) = self.node(path.leaf).content(index)
            && own.len() == value.len()
        {
            self.bytes -= len as u64;
            if let Some(own) = self.node_mut(path.leaf).into_value(index) {
                own.copy_from_slice(value);
            }
            return Ok(false);
        } else {
            self.let_go(path.leaf, index);
        }
        if cuts.is_empty() {
            if !is_new {
                self.node_mut(path.leaf).remove(index);
            }
            self.node_mut(path.leaf).insert(index, key, content);
            if is_new {
                self.count_on(&path, path.len, true);
            } else if self.node(path.leaf).used() < LOW {
                self.rebalance(&mut path);
            }
        } else {
            self.divide(&path, index, key, content, is_new, &cuts);
            self.trim();
        }
        Ok(is_new)
    }

    /// Takes an entry's value off the accounts, and lets it go where it is elsewhere.
    fn let_go(&mut self, leaf: u32, index: usize) {
        match self.node(leaf).content(index) {
            EntryContent::Elsewhere(number) => {
                self.bytes -= self.values.get(number).len() as u64;
                self.values.remove(number);
            }
            content => self.bytes -= content.len() as u64,
        }
    }

    /// Where the leaf at the end of a path must be divided, and the pages above it that the divisions make
    /// too full.
    fn plan(&self, path: &LeafPath, grown: &GrownPage<'_>) -> Vec<PageCut> {
        let mut cuts = vec![grown.cut(self.is_last(path, path.len))];
        for depth in (0..path.len).rev() {
            let (old, at) = (self.node(path.steps[depth].0), usize::from(path.steps[depth].1) + 1);
            let key = &cuts[cuts.len() - 1].separator;
            if old.free() >= node::space(1, key.len(), 0) {
                break;
            }
            let grown = GrownPage { old, at, replaces: false, key, content: EntryContent::Child(0, 0) };
            let cut = grown.cut(self.is_last(path, depth));
            cuts.push(cut);
        }
        cuts
    }

    /// Adds an entry to a leaf, and divides pages as planned, from the leaf upwards.
    fn divide(
        &mut self,
        path: &LeafPath,
        index: usize,
        key: &[u8],
        content: EntryContent<'_>,
        is_new: bool,
        cuts: &[PageCut],
    ) {
        let mut page = path.leaf;
        let mut added = self.split(page, index, key, content, !is_new, &cuts[0]);
        for (above, cut) in cuts.iter().enumerate() {
            let (below, content) = (self.below(page), EntryContent::Child(added, self.below(added)));
            let Some(depth) = path.len.checked_sub(above + 1) else {
                let level = self.node(page).level() + 1;
                self.root = self.take_page(level);
                let mut root = self.node_mut(self.root);
                root.push(b"", EntryContent::Child(page, below));
                root.push(&cut.separator, content);
                root.seal();
                return;
            };
            let (parent, slot) = (path.steps[depth].0, usize::from(path.steps[depth].1));
            let mut node = self.node_mut(parent);
            node.set_below(slot, below);
            if let Some(next) = cuts.get(above + 1) {
                added = self.split(parent, slot + 1, &cut.separator, content, false, next);
                page = parent;
            } else {
                node.insert(slot + 1, &cut.separator, content);
                if is_new {
                    self.count_on(path, depth, true);
                }
            }
        }
    }

    /// Divides a page and adds an entry. Returns the page that has the upper part.
    fn split(
        &mut self,
        page: u32,
        at: usize,
        key: &[u8],
        content: EntryContent<'_>,
        replaces: bool,
        cut: &PageCut,
    ) -> u32 {
        let old = *self.pages.page(page as usize);
        let grown = GrownPage { old: TreePage(&old), at, replaces, key, content };
        let level = grown.old.level();
        let mut lower = self.node_mut(page);
        lower.clear(level);
        for (key, content) in (0..cut.lower).map(|index| grown.entry(index)) {
            lower.push(key, content);
        }
        lower.seal();
        let added = self.take_page(level);
        let mut upper = self.node_mut(added);
        for index in cut.lower..grown.count() {
            let (key, content) = grown.entry(index);
            let is_first_above_leaves = level > 0 && index == cut.lower;
            upper.push(if is_first_above_leaves { b"" } else { key }, content);
        }
        upper.seal();
        added
    }

    /// After a removal: joins pages that are below half with their neighbours, from a leaf upwards, and lets
    /// empty ones go.
    fn rebalance(&mut self, path: &mut LeafPath) {
        let mut depth = path.len;
        if depth > 0 && self.node(path.leaf).count() == 0 {
            depth = self.drop_empty(path);
        }
        while depth > 0 {
            let page = path.page(depth);
            if self.node(page).used() >= LOW {
                break;
            }
            let (parent, slot) = (path.steps[depth - 1].0, usize::from(path.steps[depth - 1].1));
            if slot > 0 && self.fit_in_one(parent, slot - 1) {
                self.join(parent, slot - 1, path);
            } else if slot + 1 < self.node(parent).count() && self.fit_in_one(parent, slot) {
                self.join(parent, slot, path);
            } else {
                break;
            }
            depth -= 1;
        }
        while self.node(self.root).level() > 0 && self.node(self.root).count() == 1 {
            let old = self.root;
            self.root = self.node(old).child(0);
            self.drop_page(old, path);
        }
        self.trim();
    }

    /// Lets the empty leaf at the end of a path go, with the pages above it that have nothing else below
    /// them. Returns the depth of the page that had it below it.
    fn drop_empty(&mut self, path: &mut LeafPath) -> usize {
        let mut depth = path.len;
        let mut empty = [0; LEVELS_MAX + 1];
        let mut count = 0;
        // A root has two pages below it, so the loop ends before depth 0.
        while depth > 0 && self.node(path.page(depth)).count() == 0 {
            empty[count] = path.page(depth);
            count += 1;
            depth -= 1;
            let (parent, slot) = path.steps[depth];
            self.node_mut(parent).remove(usize::from(slot));
        }
        // The highest first: the page that takes its number is then none of the others.
        empty[..count].sort_unstable();
        for page in empty[..count].iter().rev() {
            self.drop_page(*page, path);
        }
        depth
    }

    /// Whether the pages below two neighbouring entries, from `slot` on, fit in one.
    fn fit_in_one(&self, parent: u32, slot: usize) -> bool {
        let node = self.node(parent);
        let (lower, upper) = (self.node(node.child(slot)), self.node(node.child(slot + 1)));
        let separator = if lower.level() > 0 { node.key(slot + 1).len() } else { 0 };
        lower.used() + upper.used() + separator <= JOINED_MAX
    }

    /// Moves the entries of the page below entry `slot + 1` to the page below entry `slot`.
    fn join(&mut self, parent: u32, slot: usize, path: &mut LeafPath) {
        let node = self.node(parent);
        let (lower, upper) = (node.child(slot), node.child(slot + 1));
        let below = node.below(slot) + node.below(slot + 1);
        let level = self.node(lower).level();
        let separator = if level > 0 { node.key(slot + 1).to_vec() } else { Vec::new() };
        let old = *self.pages.page(upper as usize);
        let old = TreePage(&old);
        let mut joined = self.node_mut(lower);
        joined.close_holes();
        for index in 0..old.count() {
            let key = if level > 0 && index == 0 { &separator } else { old.key(index) };
            joined.push(key, old.content(index));
        }
        joined.seal();
        let mut node = self.node_mut(parent);
        node.set_below(slot, below);
        node.remove(slot + 1);
        self.drop_page(upper, path);
    }

    /// Makes a page that nothing names any more a spare one. The page in use with the highest number takes
    /// its number.
    fn drop_page(&mut self, page: u32, path: &mut LeafPath) {
        let last = (self.used - 1) as u32;
        self.inner -= usize::from(self.node(page).level() > 0);
        if page != last {
            if self.root == last {
                self.root = page;
            } else if let Some((parent, index)) = self.parent_of(last) {
                self.node_mut(parent).set_child(index, page);
            }
            path.renumber(last, page);
            self.pages.swap(page as usize, last as usize);
            // The way to the page may have led through the one that is spare now.
        }
        self.used -= 1;
    }

    /// The page above this one, and its entry.
    fn parent_of(&self, page: u32) -> Option<(u32, usize)> {
        let mut lowest = self.node(page);
        while lowest.level() > 0 {
            lowest = self.node(lowest.child(0));
        }
        let key = lowest.key(0);
        let mut parent = self.root;
        loop {
            let node = self.node(parent);
            if node.level() == 0 {
                debug_assert!(false, "a page in use can be reached");
                return None;
            }
            let index = node.descend(key);
            if node.child(index) == page {
                return Some((parent, index));
            }
            parent = node.child(index);
        }
    }

    /// Makes a spare page one in use, without entries.
    fn take_page(&mut self, level: usize) -> u32 {
        let page = self.used as u32;
        self.used += 1;
        self.inner += usize::from(level > 0);
        self.node_mut(page).clear(level);
        page
    }

    /// Sees to it that this many pages are spare.
    fn add_spares(&mut self, count: usize) -> Result<(), TreeFull> {
        let missing = (self.used + count).saturating_sub(self.pages.len());
        if missing > 0 { self.grow(missing) } else { Ok(()) }
    }

    /// Gives spare pages back, but a few of a large tree, which is about to need them.
    fn trim(&mut self) {
        let kept = self.kept_pages();
        if !self.holds_reserve && self.before.is_none() && self.pages.len() > kept {
            self.pages.shrink(kept);
        }
    }

    /// Pages that it keeps, those included that it is about to need.
    pub(super) fn kept_pages(&self) -> usize {
        self.used + self.used / PAGES_PER_SPARE
    }

    /// Most pages that inserts can take: of the leaves, and of each level above as many entries are put as
    /// pages below are divided.
    fn worst_case(&self, inserts: usize, key: usize, value: usize) -> usize {
        let new = node::space(0, key, value).min(ENTRY_MAX);
        let largest = new.max(self.largest_entry);
        let mut splits = splits(inserts, new, largest, self.used - self.inner);
        let mut pages = splits;
        let separator = node::space(1, key.max(self.longest_key).min(Self::KEY_MAX), 0);
        let height = self.node(self.root).level();
        let mut level = 1;
        while splits > 0 {
            splits = if level <= height {
                let nodes = if level < height { self.inner } else { 1 };
                self::splits(splits, separator, separator, nodes)
            } else {
                // A new root, whose first entry has no key. It is divided when no more separators fit.
                pages += 1;
                let fit = (ROOM - node::space(1, 0, 0)) / separator;
                self::splits(splits, separator, separator, 0).min(splits.saturating_sub(fit))
            };
            pages += splits;
            level += 1;
        }
        pages
    }

    fn path_to(&self, key: &[u8]) -> LeafPath {
        let mut path = LeafPath { steps: [(0, 0); LEVELS_MAX], len: 0, leaf: self.root };
        loop {
            let node = self.node(path.leaf);
            if node.level() == 0 {
                return path;
            }
            let slot = node.descend(key);
            path.steps[path.len] = (path.leaf, slot as u16);
            path.len += 1;
            path.leaf = node.child(slot);
        }
    }

    /// Whether the page at this depth of a path is the last of its level.
    fn is_last(&self, path: &LeafPath, depth: usize) -> bool {
        path.steps[..depth].iter().all(|step| usize::from(step.1) + 1 == self.node(step.0).count())
    }

    /// Counts an entry in the pages of a path above this depth: one more, or one less.
    fn count_on(&mut self, path: &LeafPath, depth: usize, more: bool) {
        for &(page, slot) in &path.steps[..depth] {
            let mut node = self.node_mut(page);
            let below = node.node().below(usize::from(slot));
            node.set_below(usize::from(slot), if more { below + 1 } else { below - 1 });
        }
    }

    /// Number of entries in the part of the tree from this page down.
    fn below(&self, page: u32) -> u64 {
        let node = self.node(page);
        if node.level() == 0 { node.count() as u64 } else { node.below_first(node.count()) }
    }
}

/// Most divisions of a level of `nodes` pages by `inserts` entries of up to `new` bytes; `largest`: of
/// entries old and new. Without pages: of a new root's level.
///
/// Each insert divides one page at most. The parts of a page differ by one entry at most, so each has at
/// least `half` bytes, where the key that the upper part of an inner page leaves to the page above counts as
/// its own. Let a page with `b` bytes have `b / half - 1` points, or none if that is negative. An insert adds
/// `new / half` points, and a division takes one away: `n` divisions take `n` points, which inserts bring or
/// pages have that are not empty. To join two pages adds a point at most, and gives a page back. Of the last
/// page of a level the points may be negative, as it begins with a single entry where the one before stays
/// full: one point more.
fn splits(inserts: usize, new: usize, largest: usize, nodes: usize) -> usize {
    let half = (ROOM - largest) / 2;
    let had = nodes.min(inserts).saturating_mul(ROOM - half);
    inserts.min(had.saturating_add(inserts.saturating_mul(new)) / half + 1)
}

/// Where a page is divided.
struct PageCut {
    /// Entries that stay.
    lower: usize,
    /// Smallest key that belongs to the upper part.
    separator: Vec<u8>,
}

/// The entries of a page with another that it may have no room for.
struct GrownPage<'a> {
    old: TreePage<'a>,
    at: usize,
    /// The entry takes the place of entry `at`.
    replaces: bool,
    key: &'a [u8],
    content: EntryContent<'a>,
}

impl<'a> GrownPage<'a> {
    fn count(&self) -> usize {
        self.old.count() + usize::from(!self.replaces)
    }

    fn entry(&self, index: usize) -> (&'a [u8], EntryContent<'a>) {
        let from = match index.cmp(&self.at) {
            Ordering::Less => index,
            Ordering::Equal => return (self.key, self.content),
            Ordering::Greater => index - usize::from(!self.replaces),
        };
        (self.old.key(from), self.old.content(from))
    }

    /// Where to divide it; `is_last`: no page of its level comes after it.
    fn cut(&self, is_last: bool) -> PageCut {
        let is_behind = is_last && self.at + 1 == self.count() && self.at > 0;
        let lower = if is_behind { self.at } else { self.middle() };
        let upper = self.entry(lower).0;
        let separator = match self.old.level() {
            // Between leaves as many bytes as it takes to tell them apart.
            0 => &upper[..=node::common(self.entry(lower - 1).0, upper)],
            _ => upper,
        };
        PageCut { lower, separator: separator.to_vec() }
    }

    /// The number of entries in the lower part so that the larger part is as small as possible.
    fn middle(&self) -> usize {
        let space = |index| {
            let (key, content) = self.entry(index);
            node::space(self.old.level(), key.len(), content.len())
        };
        let all: usize = (0..self.count()).map(space).sum();
        let (mut below, mut lower) = (0, 0);
        while below + space(lower) <= all / 2 {
            below += space(lower);
            lower += 1;
        }
        let is_smaller_with = below + space(lower) <= all - below;
        (lower + usize::from(is_smaller_with)).clamp(1, self.count() - 1)
    }
}
