//! Arguments of functions that scripts call, and their errors.

use std::borrow::Cow;
use std::marker::PhantomData;

use cattlegrid_objects::{read_float, read_whole};
use mlua::{BorrowedBytes, Function, Lua, Value};

use super::Fail;
use crate::raw_call;
use crate::state::format::WHOLE_MAX;

/// An error at the place of the calling script.
pub(crate) fn fault(lua: &Lua, text: &str) -> mlua::Error {
    let place = |level| {
        lua.inspect_stack(level, |debug| {
            let source = debug.source().short_src.map(Cow::into_owned);
            source.zip(debug.current_line())
        })
    };
    // In tests, some functions are called by others of this crate.
    mlua::Error::runtime(match place(1).flatten().or_else(|| place(2).flatten()) {
        Some((source, line)) => format!("{source}:{line}: {text}"),
        None => text.to_owned(),
    })
}

/// A string, or a number in its written form. `place`: the position, from 1.
///
/// # Errors
/// The value is neither.
pub(crate) fn text<'v>(
    lua: &Lua,
    value: &'v Value,
    name: &str,
    place: usize,
) -> mlua::Result<ArgumentBytes<'v>> {
    match value {
        Value::String(string) => Ok(ArgumentBytes::Borrowed(string.as_bytes(), PhantomData)),
        Value::Integer(number) => Ok(ArgumentBytes::Owned(number_text(*number as f64))),
        Value::Number(number) => Ok(ArgumentBytes::Owned(number_text(*number))),
        other => Err(wrong(lua, name, place, "a string", other)),
    }
}

fn number_text(number: f64) -> Vec<u8> {
    let mut out = Vec::new();
    crate::json::push_number(number, &mut out);
    out
}

/// The bytes of an argument.
pub(crate) enum ArgumentBytes<'v> {
    Borrowed(BorrowedBytes, PhantomData<&'v ()>),
    Owned(Vec<u8>),
}

impl std::ops::Deref for ArgumentBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes, _) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A finite number.
///
/// # Errors
/// The value is none.
pub(crate) fn number(lua: &Lua, value: &Value, name: &str, place: usize) -> mlua::Result<f64> {
    match value {
        Value::Integer(number) => Ok(*number as f64),
        Value::Number(number) if number.is_finite() => Ok(*number),
        other => Err(wrong(lua, name, place, "a number", other)),
    }
}

fn wrong(lua: &Lua, name: &str, place: usize, what: &str, value: &Value) -> mlua::Error {
    let kind = match value {
        Value::Number(number) => number.to_string(),
        Value::LightUserData(_) => "a collection".to_owned(),
        Value::Nil => "nil".to_owned(),
        other => format!("a {}", other.type_name()),
    };
    fault(lua, &format!("{name}: argument {place} must be {what}, and is {kind}"))
}

/// Whether a number is whole and at most 2^53 in size.
pub(crate) fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() <= WHOLE_MAX
}

/// A function that parses an argument of a client: `(text, place[, default])`.
///
/// # Errors
/// Memory is short.
pub(crate) fn reader(lua: &Lua, what: &'static str, whole: bool) -> mlua::Result<Function> {
    let reader = lua.create_function(move |lua, (value, place, default): (Value, Value, Value)| {
        let read = match &value {
            Value::Nil if !default.is_nil() => return Ok(default),
            Value::Integer(number) => Some(*number as f64),
            Value::Number(number) => Some(*number),
            Value::String(string) => {
                let text = string.as_bytes();
                if whole { read_whole(&text) } else { read_float(&text) }
            }
            _ => None,
        };
        if let Some(number) = read.filter(|number| number.is_finite() && (!whole || is_whole(*number))) {
            return Ok(Value::Number(number));
        }
        let which = match place {
            Value::Nil => "the argument".to_owned(),
            place => {
                let mut text = b"arg ".to_vec();
                crate::json::push_number(number(lua, &place, "cg.number", 2)?, &mut text);
                String::from_utf8_lossy(&text).into_owned()
            }
        };
        Err(mlua::Error::external(Fail(format!("{which} must be {what}"))))
    })?;
    raw_call::read_digits(lua, reader)
}
