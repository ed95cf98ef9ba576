//! Characters that Luau does not read outside of strings and comments, and what to write instead.

use crate::lint::token::tokens;

/// Most lines of a file that are reported.
const LINES_MAX: usize = 20;

/// What is wrong, with its line; of each line and character once.
pub(super) fn check(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    if let Some(at) = text.find('\0') {
        // Luau takes it for the end of the text.
        found.push((1 + text[..at].matches('\n').count(), "a NUL byte: remove it".to_owned()));
        return found;
    }
    for (line, character) in tokens(text).strange {
        // The compiler says what is wrong with signs such as `!` or `$`.
        if !character.is_ascii() || character.is_control() {
            let text = describe(character);
            if found.last().is_none_or(|last| *last != (line, text.clone())) {
                found.push((line, text));
            }
        }
    }
    if found.len() > LINES_MAX {
        let more = found.len() - LINES_MAX;
        found.truncate(LINES_MAX);
        if let Some((_, last)) = found.last_mut() {
            *last = format!("{last}; {more} more lines have such characters");
        }
    }
    found
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
