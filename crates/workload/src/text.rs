//! Reading of text files, including byte order marks and other encodings.

use crate::quantities::Malformed;
use std::fs;
use std::io;
use std::path::Path;

/// Some editors write it at the start of a UTF-8 text, where it has no meaning.
pub const BYTE_ORDER_MARK: char = '\u{feff}';
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Removes the byte order mark of UTF-8.
///
/// # Errors
/// The text is UTF-16 or UTF-32, which is detected by its mark or by the pattern of zero bytes around ASCII characters.
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

/// Decodes a UTF-8 text and removes its byte order mark.
///
/// # Errors
/// The first line that is not UTF-8, or another encoding that was detected.
pub fn decode(bytes: Vec<u8>) -> Result<String, Malformed> {
    let without = without_mark(&bytes)?;
    std::str::from_utf8(without).map(str::to_owned).map_err(|error| {
        let line = without[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        Malformed::new(format!("line {line} is not UTF-8"), "convert the file to UTF-8")
    })
}

/// Reads a text file in UTF-8.
///
/// # Errors
/// An error of the system, or one of kind `InvalidData` if the file is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    decode(fs::read(path)?).map_err(|wrong| io::Error::new(io::ErrorKind::InvalidData, wrong.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_marks_are_removed_and_other_encodings_are_refused() {
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
