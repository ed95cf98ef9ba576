//! Reading a stream of replies in pieces: what the tests and the fuzz target share.

use cattlegrid_protocol::{ParsedResponse, parse_response};

/// All elements of `stream`, which comes in these pieces; the last is what is left or why it is broken.
///
/// # Panics
/// When `used` or `need` is out of its range.
pub(crate) fn elements(stream: &[u8], mut pieces: impl Iterator<Item = usize>) -> Vec<String> {
    let (mut elements, mut start, mut arrived) = (Vec::new(), 0, 0);
    loop {
        match parse_response(&stream[start..arrived]) {
            ParsedResponse::Complete { response, used } => {
                assert!((1..=arrived - start).contains(&used));
                elements.push(format!("{response:?}"));
                start += used;
            }
            ParsedResponse::Partial { need } => {
                assert!(need > arrived - start);
                if arrived == stream.len() {
                    elements.push(format!("{} left", arrived - start));
                    return elements;
                }
                arrived =
                    stream.len().min(arrived + pieces.next().unwrap_or(usize::MAX).max(1).min(stream.len()));
            }
            ParsedResponse::Broken(why) => {
                elements.push(format!("{why:?}"));
                return elements;
            }
        }
    }
}

/// The same elements whichever way the stream is split.
pub(crate) fn check_splits(stream: &[u8]) -> Vec<String> {
    let whole = elements(stream, std::iter::empty());
    assert_eq!(elements(stream, std::iter::repeat(1)), whole, "byte by byte: {}", stream.escape_ascii());
    for cut in 1..stream.len() {
        assert_eq!(elements(stream, std::iter::once(cut)), whole, "cut at {cut}: {}", stream.escape_ascii());
    }
    whole
}
