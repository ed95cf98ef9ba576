//! Typed jobs (feature `serde`): one argument and one reply part, as JSON or `MessagePack`.

use cattlegrid_panic::{Panic, guarded};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::payload::{Args, Reply};

/// How values become bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// JSON text.
    Json,
    /// `MessagePack`, structs as maps.
    MessagePack,
}

impl Codec {
    /// Encodes a value as the only argument of a job.
    ///
    /// # Errors
    /// [`Error::Codec`] when the value has no such form, for example a map whose keys are not strings, in
    /// JSON; or when its `Serialize` panics.
    pub fn args<T: Serialize>(self, value: &T) -> Result<Args, Error> {
        let bytes = guarded(|| match self {
            Self::Json => serde_json::to_vec(value).map_err(|error| error.to_string()),
            Self::MessagePack => rmp_serde::to_vec_named(value).map_err(|error| error.to_string()),
        });
        Ok(Args::from([converted(bytes)?]))
    }

    /// Decodes the first part of a reply.
    ///
    /// # Errors
    /// [`Error::Codec`] when the bytes are not of this form or not of this type, or when its `Deserialize`
    /// panics.
    pub fn reply<T: DeserializeOwned>(self, reply: &Reply) -> Result<T, Error> {
        let bytes = reply.part(0);
        converted(guarded(|| match self {
            Self::Json => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
            Self::MessagePack => rmp_serde::from_slice(bytes).map_err(|error| error.to_string()),
        }))
    }
}

/// The outcome of a conversion, which runs code of the program's types.
fn converted<T>(outcome: Result<Result<T, String>, Panic>) -> Result<T, Error> {
    let outcome = outcome.unwrap_or_else(|panic| Err(panic.text().unwrap_or("panic without a text").into()));
    outcome.map_err(Error::Codec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_both_codecs_and_garbage_is_an_error() {
        let value = (7_u32, "seven".to_owned(), vec![Some(1.5), None]);
        for codec in [Codec::Json, Codec::MessagePack] {
            let args = codec.args(&value).unwrap();
            let reply = Reply::new(args.encoded).unwrap();
            assert_eq!(codec.reply::<(u32, String, Vec<Option<f64>>)>(&reply), Ok(value.clone()));
            assert!(matches!(codec.reply::<u32>(&reply), Err(Error::Codec(_))));
        }
    }

    #[derive(Debug)]
    struct Panics;

    impl Serialize for Panics {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("in Serialize, as meant")
        }
    }

    impl<'de> serde::Deserialize<'de> for Panics {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            panic!("in Deserialize, as meant")
        }
    }

    #[test]
    fn a_conversion_that_panics_is_an_error() {
        for codec in [Codec::Json, Codec::MessagePack] {
            let error = codec.args(&Panics).unwrap_err();
            assert_eq!(error, Error::Codec("in Serialize, as meant".into()));
            let reply = Reply::new(codec.args(&7).unwrap().encoded).unwrap();
            let error = codec.reply::<Panics>(&reply).unwrap_err();
            assert_eq!(error, Error::Codec("in Deserialize, as meant".into()));
        }
    }
}
