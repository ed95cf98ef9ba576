//! Typed jobs (feature `serde`): one argument and one reply part, as JSON or `MessagePack`.

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
    /// [`Error::Codec`] when the value has no such form: a map whose keys are not strings, in JSON.
    pub fn args<T: Serialize>(self, value: &T) -> Result<Args, Error> {
        let bytes = match self {
            Self::Json => serde_json::to_vec(value).map_err(|error| Error::Codec(error.to_string()))?,
            Self::MessagePack => {
                rmp_serde::to_vec_named(value).map_err(|error| Error::Codec(error.to_string()))?
            }
        };
        Ok(Args::from([bytes]))
    }

    /// Decodes the first part of a reply.
    ///
    /// # Errors
    /// [`Error::Codec`] when the bytes are not of this form or not of this type.
    pub fn reply<T: DeserializeOwned>(self, reply: &Reply) -> Result<T, Error> {
        let bytes = reply.part(0);
        match self {
            Self::Json => serde_json::from_slice(bytes).map_err(|error| Error::Codec(error.to_string())),
            Self::MessagePack => {
                rmp_serde::from_slice(bytes).map_err(|error| Error::Codec(error.to_string()))
            }
        }
    }
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
}
