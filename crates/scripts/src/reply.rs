//! Conversion of a method's result to a reply.
//!
//! ```text
//!   string                  its bytes              nil, nothing            a miss
//!   number                  decimal                items 1 to n            a line each
//!   true, false             1, 0                   named entries           JSON, with `json_flags`
//!   cg.value(bytes, flags)  as given               the empty table         no line: 0 bytes
//! ```

use cattlegrid_objects::{ScriptOutcome, push_float};
use mlua::{Table, Value};

use crate::{current, json, raw_call};

/// The result of `cg.value`.
#[derive(Debug)]
pub(crate) struct FlaggedText {
    pub(crate) bytes: Vec<u8>,
    pub(crate) flags: u32,
}

/// Appends the result of a method as a reply.
///
/// # Errors
/// The value has no form as a reply.
pub(crate) fn reply(value: &Value, json_flags: u32, out: &mut Vec<u8>) -> Result<ScriptOutcome, String> {
    let mut flags = 0;
    match value {
        Value::Nil => return Ok(ScriptOutcome::Miss),
        Value::Table(table) if table.raw_len() > 0 || table.is_empty() => lines(table, out)?,
        Value::Table(_) => {
            json::encode(value, out).map_err(|text| format!("the result: {text}"))?;
            flags = json_flags;
        }
        Value::UserData(given) => {
            let given = given.borrow::<FlaggedText>().map_err(|_| no_form("userdata"))?;
            out.extend_from_slice(&given.bytes);
            flags = given.flags;
        }
        value => scalar(value, out)?,
    }
    Ok(ScriptOutcome::Value { flags })
}

/// Appends a value that is not a table.
///
/// # Errors
/// The value has no form as a reply.
fn scalar(value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
    match value {
        Value::Boolean(value) => out.push(b'0' + u8::from(*value)),
        Value::Integer(number) => push_float(out, *number as f64),
        Value::Number(number) if number.is_finite() => push_float(out, *number),
        Value::Number(number) => return Err(format!("the result is {number}")),
        Value::String(string) => out.extend_from_slice(&string.as_bytes()),
        Value::Error(_) | Value::Other(_) => return Err(no_form("userdata")),
        value if value.is_null() => {
            return Err("the result is cg.json.null: return nil, or cg.json.encode of it".to_owned());
        }
        Value::LightUserData(_) => return Err(no_form("collection")),
        other => return Err(no_form(other.type_name())),
    }
    Ok(())
}

fn lines(table: &Table, out: &mut Vec<u8>) -> Result<(), String> {
    let (from, items) = (out.len(), table.raw_len());
    let result_max = current::with(|current| current.call.settings.result_max).unwrap_or(json::TEXT_MAX);
    // Items are taken in order, unless the table has other entries, or items outside of the VM's array.
    let mut next = 0;
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(|error| error.to_string())?;
        next += 1;
        if next % json::OVER_EACH == 0 && raw_call::is_over() {
            return Err(json::OVER.to_owned());
        }
        if out.len() - from > result_max {
            out.truncate(from);
            return Err("result too large".to_owned());
        }
        let is_item = matches!(key, Value::Integer(number) if (1..=items as i64).contains(&number));
        if !is_item {
            out.truncate(from);
            return Err("the result has both items and other entries".to_owned());
        }
        let value = match key {
            Value::Integer(number) if number == next as i64 => value,
            _ => table.raw_get(next).map_err(|error| error.to_string())?,
        };
        let written = match value {
            Value::Table(_) => {
                json::encode(&value, out).map_err(|text| format!("item {next} of the result: {text}"))
            }
            value => scalar(&value, out)
                .map_err(|text| text.replace("the result", &format!("item {next} of the result"))),
        };
        if let Err(text) = written {
            out.truncate(from);
            return Err(text);
        }
        out.extend_from_slice(b"\r\n");
    }
    if next == items {
        Ok(())
    } else {
        out.truncate(from);
        Err("the result lacks some of its items".to_owned())
    }
}

fn no_form(kind: &str) -> String {
    format!("the result is a {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, TestSetting};

    fn answer(source: &str) -> Result<(ScriptOutcome, String), String> {
        let lua = testing::vm();
        let run = || lua.load(source).eval::<Value>().unwrap();
        let value = TestSetting::default().run(&mut testing::FakeWorld::default(), run).0;
        let mut out = Vec::new();
        let outcome = reply(&value, 9, &mut out)?;
        Ok((outcome, String::from_utf8(out).unwrap()))
    }

    #[test]
    fn results() {
        for (source, flags, text) in [
            ("'QUOTA_OK'", 0, "QUOTA_OK"),
            ("''", 0, ""),
            ("true", 0, "1"),
            ("false", 0, "0"),
            ("-1", 0, "-1"),
            ("-0", 0, "0"),
            ("2^53", 0, "9007199254740992"),
            ("0.1", 0, "0.1"),
            ("1e300", 0, "1e300"),
            ("{'a', 1, true}", 0, "a\r\n1\r\n1\r\n"),
            ("{{a = 1}, {}}", 0, "{\"a\":1}\r\n{}\r\n"),
            ("{b = 1, a = {1, 2}}", 9, "{\"a\":[1,2],\"b\":1}"),
            ("{}", 0, ""),
            ("cg.json.decode('[]')", 0, ""),
            ("{{}, cg.json.decode('[]')}", 0, "{}\r\n[]\r\n"),
            ("{a = {}, b = cg.json.decode('[]')}", 9, "{\"a\":{},\"b\":[]}"),
            ("cg.json.encode({})", 0, "{}"),
            ("cg.value('x', 4294967295)", u32::MAX, "x"),
            ("cg.value('x')", 0, "x"),
        ] {
            let (outcome, out) = answer(&format!("return {source}")).unwrap();
            assert_eq!((outcome, &*out), (ScriptOutcome::Value { flags }, text), "{source}");
        }
        assert_eq!(answer("return nil").unwrap(), (ScriptOutcome::Miss, String::new()));
        assert_eq!(answer("return").unwrap(), (ScriptOutcome::Miss, String::new()));
    }

    #[test]
    fn results_without_a_form() {
        for (source, text) in [
            ("0/0", "the result is NaN"),
            ("1/0", "the result is inf"),
            ("print", "the result is a function"),
            ("cg.json.null", "the result is cg.json.null: return nil, or cg.json.encode of it"),
            (
                "{1, cg.json.null}",
                "item 2 of the result is cg.json.null: return nil, or cg.json.encode of it",
            ),
            ("{1, print}", "item 2 of the result is a function"),
            ("{1, x = 2}", "the result has both items and other entries"),
            ("{x = print}", "the result: field 'x' is a function, which JSON has no form for"),
        ] {
            assert_eq!(answer(&format!("return {source}")).unwrap_err(), text, "{source}");
        }
    }

    #[test]
    fn a_result_of_many_lines() {
        let lua = testing::vm();
        let written = |source: &str| {
            let mut out = b"before".to_vec();
            let run = || reply(&lua.load(source).eval().unwrap(), 0, &mut out);
            let result = TestSetting::default().run(&mut testing::FakeWorld::default(), run).0;
            (result, out)
        };
        let many = |last: &str| format!("local t = {{}}; for i = 1, 1000 do t[i] = i end; {last}; return t");
        let (result, out) = written(&many("t[1001] = 'x'"));
        assert_eq!(result, Ok(ScriptOutcome::Value { flags: 0 }));
        assert!(out.starts_with(b"before1\r\n2\r\n") && out.ends_with(b"1000\r\nx\r\n"));
        for last in ["t.x = 1", "t[1.5] = 1", "t[500] = nil", "t[900] = print", "t[-1] = 1"] {
            let (result, out) = written(&many(last));
            assert!(result.is_err() && out == b"before", "{last}: {result:?}");
        }
        // Items that are set from the last one on are not where the VM keeps items.
        let (result, out) = written("local t = {}; for i = 300, 1, -1 do t[i] = i end; return t");
        assert_eq!(result, Ok(ScriptOutcome::Value { flags: 0 }));
        assert!(out.starts_with(b"before1\r\n2\r\n3\r\n") && out.ends_with(b"299\r\n300\r\n"));
        // One string, many times: it is written until the result is too large.
        let source = "local s, t = string.rep('x', 100000), {}; for i = 1, 100000 do t[i] = s end; return t";
        let (result, out) = written(source);
        assert_eq!((result, &*out), (Err("result too large".to_owned()), &b"before"[..]));
        assert!(out.capacity() < 4 << 20);
    }
}
