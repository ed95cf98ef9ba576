//! Objects of Cattlegrid: values with methods, which are called by the names of keys.
//!
//! [`Client::call`](crate::Client::call) makes one call, [`Client::multi_call`](crate::Client::multi_call)
//! the same call on many objects. A [`Call`] makes the name, a [`Sketch`] is what `hll:sketch` answers. A
//! server without objects, and memcached, see ordinary keys in the names, and answer that there is no value.
//!
//! Calls go to the server of the object: that of the key `type:key`, whatever the method and its arguments
//! are. They may change the object, so that they are never sent twice, and no reply is kept.

mod sketch;

use std::borrow::Cow;
use std::fmt::Display;

use crate::error::Error;
use crate::key::Key;
use crate::route::object_route;

pub use sketch::{Sketch, SketchError};

/// The name of a call, `type:method:key[:argument...]`, with colons and per cent signs in its parts escaped.
///
/// ```
/// use cattlegrid_client::objects::Call;
///
/// let call = Call::new("quota", "take", "2001:db8::1").arg(100).arg("hour");
/// assert_eq!(call.name(), "quota:take:2001%3Adb8%3A%3A1:100:hour");
/// ```
/// A name has 1 to 250 bytes without blanks and control characters, as any key; this is checked when the call
/// is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    name: String,
}

impl Call {
    /// A call without arguments.
    pub fn new(object_type: &str, method: &str, key: impl Display) -> Self {
        let mut name = String::new();
        for part in [object_type, method] {
            push(&mut name, part);
            name.push(':');
        }
        push(&mut name, key);
        Self { name }
    }

    /// The same with another argument behind those that it has.
    #[must_use]
    pub fn arg(mut self, argument: impl Display) -> Self {
        self.name.push(':');
        push(&mut self.name, argument);
        self
    }

    /// The call's name as it is sent: the type, `:`, and the method.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Key for Call {
    fn bytes(&self) -> &[u8] {
        self.name.as_bytes()
    }
}

/// Appends a part of a name.
fn push(name: &mut String, part: impl Display) {
    name.push_str(&part.to_string().replace('%', "%25").replace(':', "%3A"));
}

/// The key that decides which server has the object of this call.
///
/// # Errors
/// The name is not that of a call.
pub(crate) fn route(name: &[u8]) -> Result<Cow<'_, [u8]>, Error> {
    let mut parts = name.splitn(4, |byte| *byte == b':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(object_type), Some(method), Some(key))
            if !object_type.is_empty() && !method.is_empty() && !key.is_empty() =>
        {
            Ok(object_route(name))
        }
        _ => {
            let name = String::from_utf8_lossy(name);
            Err(Error::Usage(format!("{name:?} is not the name of a call: type:method:key[:argument...]")))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_escapes() {
        let call = Call::new("set", "put", "a:b%3A").arg("100%").arg(7).arg("");
        assert_eq!(call.name(), "set:put:a%3Ab%253A:100%25:7:");
        assert_eq!(route(call.bytes()).unwrap(), b"set:a%3Ab%253A".as_slice());
        assert_eq!(Call::new("hll:count", "x", "a").name(), "hll%3Acount:x:a", "no other method");
    }

    #[test]
    fn the_server_of_a_call_depends_on_the_object_alone() {
        for name in ["set:put:k:a", "set:has:k:b:c", "set:count:k"] {
            assert_eq!(route(name.as_bytes()).unwrap(), b"set:k".as_slice());
        }
        for wrong in ["", "set", "set:put", "set:put:", ":put:k", "set::k"] {
            let error = route(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("type:method:key"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parts_come_back(key in "[a:%32A5]{1,12}", argument in "[a:%32A5]{0,12}") {
            let call = Call::new("t", "m", &key).arg(argument);
            prop_assert_eq!(call.name().matches(':').count(), 3);
            let other = Call::new("t", "m2", &key);
            prop_assert_eq!(route(call.bytes()).unwrap(), route(other.bytes()).unwrap());
            let parts: Vec<String> = call.name().split(':').map(|part| part.replace("%3A", ":").replace("%25", "%")).collect();
            prop_assert_eq!(&parts[2], &key);
        }
    }
}
