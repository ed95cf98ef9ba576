//! A load as the arguments of a job: what the worker is told of a key.
//!
//! Workers with frames get the list of [`wire::job_parts`]; those of JSON lines get one JSON object, whose
//! members the pool puts into the job's line:
//!
//! ```json
//! {"key":"page:42","rule":"page:{id}","args":{"id":"42"},"hint":"small","stale":"old value"}
//! ```
//!
//! # Invariants
//! * `hint` and `stale` are there only if the load has them. Bytes that are not UTF-8 are `{"b64":"..."}`.
//! * The hint is the client's text itself: clients send it with `%20` for a blank, since a command's words
//!   have none.

use cattlegrid_config::LoaderMode;
use cattlegrid_engine::Load;
use cattlegrid_engine::rules::Captures;
use cattlegrid_pool::{Args, base64};
use cattlegrid_worker::loader::wire;
use percent_encoding::percent_decode;
use serde_json::{Map, Value, json};

/// The arguments of the job that computes `load`, for a loader of this mode.
pub(crate) fn args(load: &Load, mode: LoaderMode) -> Args {
    // A load was made for a key that its rule matches.
    let captures = load.rule.pattern.match_key(load.name());
    match mode {
        LoaderMode::JsonLines => Args::from([object(load, captures.as_ref())]),
        LoaderMode::Template | LoaderMode::Exec | LoaderMode::Stdio => {
            let pairs = pairs(load, captures.as_ref());
            let hint = hint(load).unwrap_or_default();
            let text = load.rule.pattern.text();
            let stale = stale(load);
            Args::from(wire::job_parts(&load.key, text, &hint, stale.as_deref(), &pairs))
        }
    }
}

fn pairs<'l>(load: &'l Load, captures: Option<&Captures<'l>>) -> Vec<(&'l str, &'l [u8])> {
    let values = captures.into_iter().flat_map(Captures::iter);
    load.rule.pattern.names().zip(values).collect()
}

fn object(load: &Load, captures: Option<&Captures<'_>>) -> String {
    let args: Map<String, Value> =
        pairs(load, captures).into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
    let mut job = json!({"key": text(&load.key), "rule": load.rule.pattern.text(), "args": args});
    for (name, bytes) in [("hint", hint(load)), ("stale", stale(load))] {
        if let Some(bytes) = bytes {
            job[name] = text(&bytes);
        }
    }
    job.to_string()
}

/// The client's hint, decoded. A `%` without two hexadecimal digits after it stays.
fn hint(load: &Load) -> Option<Vec<u8>> {
    load.hint.as_deref().map(|hint| percent_decode(hint).collect())
}

/// The old value in one piece.
fn stale(load: &Load) -> Option<Vec<u8>> {
    load.stale.as_ref().map(|value| value.slices().collect::<Vec<_>>().concat())
}

fn text(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!({"b64": base64::encode(bytes)}), Value::from)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use cattlegrid_engine::DeliveredValue;
    use cattlegrid_engine::rules::{Loading, Pattern, Rule, Urgency};

    use super::*;

    /// A load of `key` under `pattern` by the loader `pages`.
    pub(crate) fn load(pattern: &str, key: &[u8]) -> Load {
        let loading = Loading { loader: "pages".into(), ttl_s: 60, urgency: Urgency::High, stale: false };
        let rule = Rule {
            number: 1,
            pattern: Pattern::parse(pattern).unwrap(),
            policy: cattlegrid_herd::Policy { leases: true, loader: true, ..Default::default() },
            tags: Vec::new(),
            negative_ttl_s: 1,
            loading: Some(loading),
            prefix: None,
        };
        Load {
            key: key.into(),
            prefix_len: 0,
            token: 7,
            rule: Arc::new(rule),
            hint: None,
            stale: None,
            is_refresh: false,
            ordered_ms: 0,
        }
    }

    #[test]
    fn a_list_has_five_parts_and_two_for_each_capture() {
        let mut load = load("page:{id}:{part}", b"page:42:\xff");
        let parts = |load: &Load| -> Vec<Vec<u8>> {
            args(load, LoaderMode::Template).list().iter().map(<[u8]>::to_vec).collect()
        };
        let [id, part]: [&[u8]; 2] = [b"id", b"part"];
        let plain: [&[u8]; 9] =
            [b"page:42:\xff", b"page:{id}:{part}", b"", b"", b"", id, b"42", part, b"\xff"];
        assert_eq!(parts(&load), plain);
        load.hint = Some(Arc::from(&b"small"[..]));
        load.stale = Some(DeliveredValue::Inline((*b"").into()));
        assert_eq!(parts(&load)[2..5], [b"small".to_vec(), b"1".to_vec(), b"".to_vec()]);
    }

    #[test]
    fn a_hint_is_the_clients_text() {
        let mut load = load("page:{id}", b"page:42");
        for (sent, text) in [
            ("", ""),
            ("small", "small"),
            ("like%20this%2c%2C%25", "like this,,%"),
            ("%", "%"),
            ("%2", "%2"),
            ("%%41", "%A"),
            ("%4g%g4%", "%4g%g4%"),
            ("%0a%00", "\n\0"),
        ] {
            load.hint = Some(Arc::from(sent.as_bytes()));
            assert_eq!(hint(&load).as_deref(), Some(text.as_bytes()), "{sent}");
        }
        load.hint = Some(Arc::from(&b"%fF"[..]));
        assert_eq!(args(&load, LoaderMode::Template).list().get(2), Some(&b"\xff"[..]));
        let object = args(&load, LoaderMode::JsonLines);
        let object: Value = serde_json::from_slice(object.list().get(0).unwrap()).unwrap();
        assert_eq!(object["hint"], json!({"b64": "/w=="}));
    }

    #[test]
    fn an_object_has_what_there_is() {
        let mut load = load("page:{id}", b"page:42");
        let object = |load: &Load| -> Value {
            let args = args(load, LoaderMode::JsonLines);
            assert_eq!(args.list().len(), 1);
            serde_json::from_slice(args.list().get(0).unwrap()).unwrap()
        };
        assert_eq!(object(&load), json!({"key": "page:42", "rule": "page:{id}", "args": {"id": "42"}}));
        load.hint = Some(Arc::from(&b"a\"b\n"[..]));
        load.stale = Some(DeliveredValue::Inline((*b"\xff").into()));
        assert_eq!(object(&load)["hint"], "a\"b\n");
        assert_eq!(object(&load)["stale"], json!({"b64": "/w=="}));
    }
}
