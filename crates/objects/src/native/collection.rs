//! What the collections have in common.

use crate::arguments::Arguments;
use crate::call::CallError;

/// The argument as a member's key, which may have this many bytes.
pub(crate) fn member_within<'a>(
    arguments: &Arguments<'a>,
    place: usize,
    most: usize,
) -> Result<&'a [u8], CallError> {
    let member = arguments.get(place).unwrap_or_default();
    if member.is_empty() {
        return Err(CallError::Client(format!("arg {} must not be empty", place + 1)));
    }
    if member.len() > most {
        return Err(CallError::Client(format!("arg {} is longer than {most} bytes", place + 1)));
    }
    Ok(member)
}
