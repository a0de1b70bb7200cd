//! Makes text safe for terminals.

use std::borrow::Cow;

/// Text from a user, a task, a node or the network as one line that is safe to print: characters that move the cursor,
/// ring, change colours or change the reading direction are escaped, such as `\n` and `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, misleads)
}

/// As [`visible`], for our own text with such parts: line breaks are kept.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| character != '\n' && misleads(character))
}

/// As [`visible`], for a line with our own colours.
pub fn visible_in_colour(text: &str) -> Cow<'_, str> {
    escaped(text, |character| character != '\u{1b}' && misleads(character))
}

fn escaped(text: &str, which: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&which) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match which(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// Control characters, and characters that change the reading direction or break lines.
pub fn misleads(character: char) -> bool {
    let turns =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || turns || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_acts_on_are_escaped() {
        assert_eq!(visible("a\u{1b}[2Jb\r\n\u{7}\u{9b}\u{202e}"), r"a\u{1b}[2Jb\r\n\u{7}\u{9b}\u{202e}");
        assert_eq!(visible_lines("a\nb\u{1b}"), "a\nb\\u{1b}");
        assert!(matches!(visible("plain é"), Cow::Borrowed(_)));
    }
}
