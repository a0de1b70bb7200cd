//! Text files as people and the editors of other systems leave them.

use crate::quantities::Malformed;
use std::fs;
use std::io;
use std::path::Path;

/// Some editors put it before a text, where it says nothing.
pub const BYTE_ORDER_MARK: char = '\u{feff}';
const MARK: &[u8] = b"\xef\xbb\xbf";

/// What there is of a text's bytes after a mark of its encoding.
///
/// # Errors
/// When they are UTF-16 or UTF-32, by their mark or by how ASCII looks in these.
pub fn without_mark(bytes: &[u8]) -> Result<&[u8], Malformed> {
    let encoding = match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] | [1..=255, 0, 0, 0, ..] | [0, 0, 0, 1..=255, ..] => "UTF-32",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [1..=255, 0, 1..=255, 0, ..] | [0, 1..=255, 0, 1..=255, ..] => "UTF-16",
        _ => return Ok(bytes.strip_prefix(MARK).unwrap_or(bytes)),
    };
    Err(Malformed::new(
        format!("the text is {encoding}"),
        format!("convert it to UTF-8, for instance with `iconv -f {encoding} -t UTF-8`"),
    ))
}

/// A text in UTF-8, without its mark.
///
/// # Errors
/// In which line it is something else.
pub fn decode(bytes: Vec<u8>) -> Result<String, Malformed> {
    let without = without_mark(&bytes)?;
    std::str::from_utf8(without).map(str::to_owned).map_err(|error| {
        let line = without[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        Malformed::new(format!("line {line} is not UTF-8"), "convert the file to UTF-8")
    })
}

/// Reads a file that is a text.
///
/// # Errors
/// The system's, and of kind `InvalidData` where it is none in UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    decode(fs::read(path)?).map_err(|wrong| io::Error::new(io::ErrorKind::InvalidData, wrong.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_skipped_and_other_encodings_are_named() {
        assert_eq!(decode(b"\xef\xbb\xbfab".to_vec()).as_deref(), Ok("ab"));
        assert_eq!(decode(b"ab".to_vec()).as_deref(), Ok("ab"));
        assert_eq!(decode(Vec::new()).as_deref(), Ok(""));
        for (bytes, encoding) in [
            (&b"\xff\xfea\0"[..], "UTF-16"),
            (b"\xfe\xff\0a", "UTF-16"),
            (b"a\0b\0", "UTF-16"),
            (b"\0a\0b", "UTF-16"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
            (b"a\0\0\0", "UTF-32"),
        ] {
            let wrong = decode(bytes.to_vec()).unwrap_err();
            assert!(wrong.problem.contains(encoding) && wrong.remedy.contains("iconv"), "{wrong}");
        }
        assert_eq!(decode(b"a\nb\xe9".to_vec()).unwrap_err().problem, "line 2 is not UTF-8");
    }
}
