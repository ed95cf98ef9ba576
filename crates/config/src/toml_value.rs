//! Reading of values in the form of a rule file.

use toml::Spanned;
use toml::de::{DeInteger, DeValue};

use crate::value::{OptionValue, SECOND, TextValue, URL, ValueKind, ValueSyntax, read_ms, read_size};

impl ValueKind {
    /// Reads a value of a rule file.
    ///
    /// # Errors
    /// The text continues a sentence that began with the key.
    pub(crate) fn read_toml(self, value: &Spanned<DeValue<'_>>) -> Result<OptionValue, String> {
        let given = value.get_ref();
        // Without a unit, milliseconds and seconds could be confused; 0 needs none.
        let ms = || match given {
            DeValue::Integer(number) if integer(number) == Some(0) => Some(0),
            DeValue::String(text) => read_ms(text),
            _ => None,
        };
        let read = match self {
            Self::Text { max, .. } => {
                text_of(value).filter(|text| is_word(&text.text, max)).map(OptionValue::Text)
            }
            Self::Free { max, .. } => {
                text_of(value).filter(|text| text.text.len() <= max).map(OptionValue::Text)
            }
            Self::Flag => given.as_bool().map(OptionValue::Flag),
            Self::FlagOr { word } => match given.as_bool() {
                Some(is) => Some(OptionValue::Flag(is)),
                None => text_of(value).filter(|text| text.text == word).map(OptionValue::Text),
            },
            Self::List { .. } => match given {
                DeValue::Array(list) => {
                    list.iter().map(text_of).collect::<Option<_>>().map(OptionValue::List)
                }
                _ => None,
            },
            Self::Words { .. } => match given {
                DeValue::Array(list) => {
                    list.iter().map(word_of).collect::<Option<_>>().map(OptionValue::List)
                }
                _ => None,
            },
            Self::AutoMs { .. } if given.as_str() == Some("auto") => Some(OptionValue::Auto),
            Self::Ms { min, max } | Self::AutoMs { min, max } => {
                ms().filter(|ms| (min..=max).contains(ms)).map(OptionValue::Ms)
            }
            Self::Seconds { max } => {
                let exact = ms().filter(|ms| *ms <= max && ms % SECOND == 0);
                exact.and_then(|ms| u32::try_from(ms / SECOND).ok()).map(OptionValue::Seconds)
            }
            Self::Percent { max } => match given {
                DeValue::Integer(number) if integer(number) == Some(0) => Some(0),
                DeValue::String(text) => text.strip_suffix('%').and_then(read_percent),
                _ => None,
            }
            .filter(|percent| *percent <= max)
            .map(OptionValue::Percent),
            Self::Share { min, max } => match given {
                DeValue::Table(table) => match table.iter().next() {
                    Some((name, share)) if table.len() == 1 && &**name.get_ref() == "share" => {
                        share_of(share.get_ref())
                            .filter(|ppm| (min..=max).contains(ppm))
                            .map(OptionValue::Share)
                    }
                    _ => None,
                },
                _ => text_of(value)
                    .filter(|text| ["off", "auto"].contains(&&*text.text))
                    .map(OptionValue::Text),
            },
            Self::Number { min, max, .. } => match given {
                DeValue::Integer(number) => {
                    integer(number).filter(|number| (min..=max).contains(number)).map(OptionValue::Number)
                }
                _ => None,
            },
            Self::Size { min, max } => match given {
                DeValue::Integer(number) => integer(number).and_then(|number| u64::try_from(number).ok()),
                DeValue::String(text) => read_size(text),
                _ => None,
            }
            .filter(|bytes| (min..=max).contains(bytes))
            .map(OptionValue::Bytes),
            Self::Choice { names, .. } => {
                text_of(value).filter(|text| names.contains(&&*text.text)).map(OptionValue::Text)
            }
            // These are separate tables, which are read elsewhere.
            Self::Any => Some(OptionValue::None),
            Self::None | Self::Octal => unreachable!("only options are of this kind"),
        };
        read.ok_or_else(|| {
            let is_time = matches!(self, Self::Ms { .. } | Self::AutoMs { .. } | Self::Seconds { .. });
            let unit = if is_time && given.is_integer() { ", with its unit and in quotes" } else { "" };
            let shown = match self {
                Self::Text { what: URL, .. } => "its value".to_owned(),
                _ => show(given),
            };
            format!("{shown}: must be {}{unit}", self.describe(ValueSyntax::RuleFile))
        })
    }
}

/// A percentage, which has digits only.
fn read_percent(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A fraction, in parts per million.
#[expect(clippy::cast_sign_loss, reason = "it is above 0")]
fn share_of(value: &DeValue<'_>) -> Option<u32> {
    let DeValue::Float(number) = value else { return None };
    let ppm = number.as_str().replace('_', "").parse::<f64>().ok()? * 1e6;
    // NaN compares as false.
    (0.5..1e6).contains(&ppm).then_some(ppm.round() as u32)
}

fn is_word(text: &str, max: usize) -> bool {
    text.len() <= max && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<TextValue> {
    Some(TextValue { text: value.get_ref().as_str()?.to_owned(), offset: value.span().start })
}

/// A string, or a number as text.
fn word_of(value: &Spanned<DeValue<'_>>) -> Option<TextValue> {
    let text = match value.get_ref() {
        DeValue::Integer(number) => integer(number)?.to_string(),
        DeValue::Float(number) => number.as_str().to_owned(),
        _ => return text_of(value),
    };
    Some(TextValue { text, offset: value.span().start })
}

/// A value in messages: short values unchanged, long ones by their type.
pub(crate) fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.len() > SHOWN_BYTES => {
            let end = (0..=SHOWN_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            format!("{:?}... ({} bytes)", &text[..end], text.len())
        }
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => {
            integer(number).map_or_else(|| number.as_str().to_owned(), |n| n.to_string())
        }
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Array(list) => {
            let shown: Vec<String> =
                list.iter().take(SHOWN_VALUES).map(|value| show(value.get_ref())).collect();
            let more = if list.len() > SHOWN_VALUES { ", ..." } else { "" };
            format!("[{}{more}]", shown.join(", "))
        }
        DeValue::Table(table) if table.len() == 1 => {
            let (name, value) = table.iter().next().expect("it has one");
            format!("{{ {} = {} }}", name.get_ref(), show(value.get_ref()))
        }
        _ => format!("a {}", value.type_str()),
    }
}

/// The most bytes of a string in a message.
const SHOWN_BYTES: usize = 100;
/// The most values of a list in a message.
const SHOWN_VALUES: usize = 4;

/// The number, unless it is too large.
pub(crate) fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
}
