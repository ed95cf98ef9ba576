//! `lru_crawler metadump` and `mgdump`: every key, a piece at a time.

use cattlegrid_engine::{Cursor, Engine, Now};
use cattlegrid_protocol::reply;
use cattlegrid_store::{Item, Marks, NEVER};

use crate::watch::Escaped;

/// A dump under way. The items are read a few at a time, under one shard's lock at a time; what is stored
/// meanwhile may or may not be in it.
#[derive(Debug)]
pub(crate) struct Dump {
    form: Form,
    cursor: Option<Cursor>,
    hide_cas: bool,
}

/// How a key is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `key=.. exp=.. la=.. cas=.. fetch=.. cls=.. size=.. flags=..`
    Meta,
    /// `mg <key>`, to be sent to a server as it is.
    MetaGet,
}

/// Items read under one lock.
const PIECE: usize = 64;

impl Dump {
    pub(crate) fn new(form: Form, hide_cas: bool) -> Self {
        Self { form, cursor: Some(Cursor::default()), hide_cas }
    }

    /// Writes lines until `out` holds `most` bytes; true at the end, whose mark is written then.
    pub(crate) fn go_on(&mut self, engine: &Engine, now: Now, most: usize, out: &mut Vec<u8>) -> bool {
        let (form, hide_cas) = (self.form, self.hide_cas);
        while let Some(cursor) = self.cursor {
            if out.len() >= most {
                return false;
            }
            self.cursor = engine.scan(cursor, PIECE, |item| match form {
                Form::Meta => meta_line(out, &item, now, hide_cas),
                Form::MetaGet => get_line(out, item.key()),
            });
        }
        out.extend_from_slice(if self.form == Form::Meta { b"END\r\n" } else { b"EN\r\n" });
        true
    }
}

fn meta_line(out: &mut Vec<u8>, item: &Item<'_>, now: Now, hide_cas: bool) {
    let expiry = if item.expiry() == NEVER { -1 } else { now.unix(item.expiry()) };
    let line = format!(
        "key={} exp={expiry} la={} cas={} fetch={} cls=1 size={} flags={}\n",
        Escaped(item.key()),
        now.unix(item.accessed()),
        if hide_cas { 0 } else { item.cas() },
        if item.marks().has(Marks::FETCHED) { "yes" } else { "no" },
        item.size(),
        item.flags(),
    );
    out.extend_from_slice(line.as_bytes());
}

fn get_line(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"mg ");
    if key.iter().any(|b| *b <= b' ' || *b == 0x7f) {
        reply::key_base64(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
    reply::end_line(out);
}
