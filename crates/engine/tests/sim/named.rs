//! The tag of a key that its clients name, and the rule does not give: how they name it.

use super::*;

/// How clients name the tag of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedBy {
    /// The flag `G` of an `ms`.
    Flag,
    /// The value's first line.
    Line,
    /// An announcement for the key. True: no value is stored without.
    Announcement(bool),
}

impl NamedBy {
    pub(crate) fn draw(rng: &mut Rng, promise: Promise) -> Self {
        let needed = rng.one_in(2) && promise != Promise::Nothing;
        rng.of(&[Self::Flag, Self::Line, Self::Announcement(needed)])
    }

    /// The rules of a history whose clients name tags like this; None: they name none.
    pub(crate) fn rules(this: Option<Self>, policy: Policy) -> [(&'static str, Policy); 2] {
        let of_counters = Policy { grace_s: 20, ..policy };
        let policy = match this {
            Some(Self::Line) => Policy { tags_in_value: TagsInValue::Taken, ..policy },
            Some(Self::Announcement(needed)) => Policy { needs_announced_tags: needed, ..policy },
            _ => policy,
        };
        [("page:{id}", policy), ("count:{id}", of_counters)]
    }
}

impl Sim {
    /// The command that stores a value.
    pub(crate) fn line_of(
        &mut self,
        at: usize,
        n: usize,
        value: &str,
        exptime: i64,
        verb: Verb,
        is_fill: bool,
    ) -> String {
        let (k, mut value) = (key(n), value.to_owned());
        match self.named_by {
            Some(NamedBy::Flag) => {
                if is_fill {
                    self.note("fill with a named tag");
                }
                let (mode, len) = (mode_of(verb), value.len());
                return format!("ms {k} {len} T{exptime} Gnamed:{n}{mode}|{value}|");
            }
            Some(NamedBy::Line) => {
                if is_fill {
                    self.note("fill with a line of tags");
                }
                value.insert_str(0, &format!("@tags:named:{n}\n"));
            }
            Some(NamedBy::Announcement(_)) => {
                self.announce(at, n);
                if is_fill {
                    self.note("fill with an announced tag");
                }
            }
            None => {}
        }
        let len = value.len();
        match verb {
            Verb::Set => format!("set {k} 0 {exptime} {len}|{value}|"),
            Verb::Add => format!("add {k} 0 {exptime} {len}|{value}|"),
            Verb::Replace => format!("replace {k} 0 {exptime} {len}|{value}|"),
            Verb::Cas(cas) => format!("cas {k} 0 {exptime} {len} {cas}|{value}|"),
            Verb::Token(_) | Verb::Negative(_) => {
                format!("ms {k} {len} T{exptime}{}|{value}|", mode_of(verb))
            }
        }
    }

    /// Announces the tag of a key, unless one of its clients has and that counts still.
    pub(crate) fn announce(&mut self, at: usize, n: usize) {
        if self.unruled || self.announced_until_ms[n] > self.w.ms && !self.rng.one_in(8) {
            return;
        }
        let window_ms = match self.policy.fill_window {
            FillWindow::Fixed(ms) => ms.into(),
            FillWindow::Auto => 60_000,
        };
        self.announced_until_ms[n] = self.announced_until_ms[n].max(self.w.ms + window_ms);
        let line = format!("set @tags:{} 0 0 7|named:{n}|", key(n));
        self.send(at, &line, Want::Line { accepted: true });
    }

    /// A value whose line of tags is malformed is refused, as a value that is too large.
    pub(crate) fn store_malformed(&mut self, at: usize, n: usize, token: Option<u64>) {
        self.note("a malformed line of tags");
        let by = token.map_or_else(String::new, |token| format!(" C{token}"));
        let value = self.rng.of(&["@tags:\n9.9.", "@tags:a b\n9.9.", "@tags:named"]);
        let line = format!("ms {} {}{by}|{value}|", key(n), value.len());
        self.send(at, &line, Want::Line { accepted: false });
    }
}

fn mode_of(verb: Verb) -> String {
    match verb {
        Verb::Set => String::new(),
        Verb::Add => " ME".to_owned(),
        Verb::Replace => " MR".to_owned(),
        Verb::Cas(number) | Verb::Token(number) => format!(" C{number}"),
        Verb::Negative(_) => unreachable!("it has no value"),
    }
}
