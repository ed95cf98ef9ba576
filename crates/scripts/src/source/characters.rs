//! Characters that Luau does not accept outside of strings and comments, and their replacements.

use crate::compiler;

/// The most lines of a file that are reported.
const LINES_MAX: usize = 20;

/// The problems with their lines, once for each line and character.
pub(super) fn check(text: &str) -> Vec<(usize, String)> {
    if let Some(at) = text.find('\0') {
        // Luau takes it for the end of the text.
        return vec![(1 + text[..at].matches('\n').count(), "a NUL byte: remove it".to_owned())];
    }
    let (mut text, mut found) = (text.to_owned(), Vec::new());
    while found.len() < LINES_MAX {
        // The compiler reports the first such character: it is removed, and the rest is compiled again.
        let Err((Some(line), refused)) = compiler::compile(&text, &compiler::to_run()) else { break };
        let Some(character) = character_of(&refused) else { break };
        let start = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        let end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let without = text[start..end].replace(character, &" ".repeat(character.len_utf8()));
        if text[start..end] == without {
            break;
        }
        text.replace_range(start..end, &without);
        found.push((line, describe(character)));
    }
    found
}

/// The character that the compiler has refused.
fn character_of(refused: &str) -> Option<char> {
    if let Some((_, code)) = refused.split_once("Unicode character U+") {
        let digits = code.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        return char::from_u32(u32::from_str_radix(digits, 16).ok()?);
    }
    refused.chars().find(|character| character.is_control())
}

fn describe(character: char) -> String {
    let by_blank = |name: &str| format!("{name}: replace it by a blank");
    match character {
        '\u{feff}' => "a byte order mark: save the file without it".to_owned(),
        '\u{a0}' => by_blank("no-break space"),
        '\u{202f}' => by_blank("narrow no-break space"),
        '\u{3000}' => by_blank("ideographic space"),
        '\u{2000}'..='\u{200a}' => by_blank("typographic space"),
        '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{ad}' => {
            format!("invisible character U+{:04X}: remove it", u32::from(character))
        }
        '\u{85}' | '\u{2028}' | '\u{2029}' => "line separator: replace it by a line end".to_owned(),
        '\u{201c}' | '\u{201d}' | '\u{201e}' => format!("{character}: replace it by \""),
        '\u{2018}' | '\u{2019}' | '\u{201a}' => format!("{character}: replace it by '"),
        '\u{2010}'..='\u{2015}' | '\u{2212}' => format!("{character}: replace it by -"),
        other if other.is_control() => format!("control character U+{:04X}: remove it", u32::from(other)),
        other => format!("{other}: only strings and comments may have characters outside of ASCII"),
    }
}
