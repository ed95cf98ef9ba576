//! A parser for the parts of DER that are needed to tell the kind of a key, and to read certificates that
//! rustls does not read.

/// An element: its tag, its contents, and its whole encoding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) contents: &'a [u8],
    pub(super) whole: &'a [u8],
}

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
/// The tag of a certificate's version.
pub(super) const CONTEXT_0: u8 = 0xa0;
/// The tag of a certificate's extensions.
pub(super) const CONTEXT_3: u8 = 0xa3;

/// Takes the first element of `rest`; None: there is none, or it is incomplete.
pub(super) fn take<'a>(rest: &mut &'a [u8]) -> Option<Element<'a>> {
    let all = *rest;
    let (tag, length) = (*all.first()?, *all.get(1)?);
    let (from, length) = match length {
        0..=0x7f => (2, usize::from(length)),
        0x81..=0x84 => {
            let bytes = usize::from(length & 0x7f);
            let length = all.get(2..2 + bytes)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (2 + bytes, length)
        }
        _ => return None,
    };
    let end = from.checked_add(length)?;
    let whole = all.get(..end)?;
    *rest = &all[end..];
    Some(Element { tag, contents: &whole[from..], whole })
}

/// Takes the first element of `rest` if it has this tag.
pub(super) fn take_tagged<'a>(rest: &mut &'a [u8], tag: u8) -> Option<Element<'a>> {
    let mut ahead = *rest;
    let element = take(&mut ahead).filter(|element| element.tag == tag)?;
    *rest = ahead;
    Some(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_whole_cut_and_long() {
        let mut rest = &[0x02, 0x01, 0x05, 0x30, 0x81, 0x02, 0x05, 0x00][..];
        let number = take(&mut rest).unwrap();
        assert_eq!((number.tag, number.contents, number.whole.len()), (INTEGER, &[5][..], 3));
        assert!(take_tagged(&mut rest, INTEGER).is_none());
        assert_eq!(take_tagged(&mut rest, SEQUENCE).unwrap().contents, [5, 0]);
        assert!(rest.is_empty() && take(&mut rest).is_none());
        for cut in [
            &[0x30][..],
            &[0x30, 0x02, 0x05],
            &[0x30, 0x80],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x30, 0x82, 1],
        ] {
            assert!(take(&mut &*cut).is_none(), "{cut:?}");
        }
    }
}
