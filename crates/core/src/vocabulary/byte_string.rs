//! Strings of processes and file systems: any bytes, mostly UTF-8.

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Borrow;
use std::fmt;
use std::fmt::Write;

/// A word of a command, a variable, an item or a path. Every byte reaches the process unchanged.
///
/// Human-readable formats store it as a string if it is UTF-8, otherwise as `{"bytes": "caf\\xe9"}`, in which `\xNN` is a byte
/// and `\\` a backslash. Binary formats store its bytes like those of a string.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteString(Box<[u8]>);

/// The only key of the table that stores bytes that are not UTF-8.
pub const BYTES: &str = "bytes";

impl ByteString {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// `None` if it is not UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_vec()
    }

    /// Reads what [`escaped`] writes: `\xNN` and `\\` are escapes, everything else stands for itself.
    ///
    /// # Errors
    /// If a backslash does not start an escape.
    pub fn unescape(text: &str) -> Result<ByteString, String> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, escape)) = rest.split_once('\\') {
            bytes.extend_from_slice(before.as_bytes());
            rest = if let Some(rest) = escape.strip_prefix('\\') {
                bytes.push(b'\\');
                rest
            } else {
                let digits = escape.strip_prefix('x').and_then(|escape| escape.get(..2));
                let byte = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
                let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                let shown: String = escape.chars().take(3).collect();
                bytes.push(byte.ok_or_else(|| {
                    format!(
                        "`\\{shown}` is not an escape sequence: write `\\xNN` for a byte and `\\\\` for a backslash"
                    )
                })?);
                &escape[3..]
            };
        }
        bytes.extend_from_slice(rest.as_bytes());
        Ok(bytes.into())
    }
}

/// The bytes as a string that [`ByteString::unescape`] reads.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Bytes as shown to people: unchanged if they are UTF-8, otherwise escaped.
pub fn shown(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| escaped(bytes), str::to_owned)
}

impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_str() {
            Some(text) => f.pad(text),
            None => f.pad(&escaped(&self.0)),
        }
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", shown(&self.0))
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> ByteString {
        ByteString(bytes.into())
    }
}

impl From<&[u8]> for ByteString {
    fn from(bytes: &[u8]) -> ByteString {
        ByteString(bytes.into())
    }
}

impl From<String> for ByteString {
    fn from(text: String) -> ByteString {
        text.into_bytes().into()
    }
}

impl From<&str> for ByteString {
    fn from(text: &str) -> ByteString {
        text.as_bytes().into()
    }
}

impl Borrow<[u8]> for ByteString {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<str> for ByteString {
    fn eq(&self, text: &str) -> bool {
        *self.0 == *text.as_bytes()
    }
}

impl PartialEq<&str> for ByteString {
    fn eq(&self, text: &&str) -> bool {
        self == *text
    }
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteString, D::Error> {
        deserialize(deserializer).map(ByteString::from)
    }
}

/// For `#[serde(with = ..)]` on a `Vec<u8>`.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if !serializer.is_human_readable() {
        return serializer.serialize_bytes(bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return serializer.serialize_str(text);
    }
    let mut table = serializer.serialize_map(Some(1))?;
    table.serialize_entry(BYTES, &escaped(bytes))?;
    table.end()
}

/// For `#[serde(with = ..)]` on a `Vec<u8>`.
///
/// # Errors
/// Those of the format.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    if deserializer.is_human_readable() {
        deserializer.deserialize_any(BytesVisitor)
    } else {
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or a table such as { bytes = 'caf\\xe9' } if it is not UTF-8")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
        Ok(text.as_bytes().to_vec())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Vec<u8>, E> {
        Ok(text.into_bytes())
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Vec<u8>, A::Error> {
        let wanted = || de::Error::custom("a table in place of a string must have the key `bytes` and no other");
        let key: String = table.next_key()?.ok_or_else(wanted)?;
        if key != BYTES {
            return Err(wanted());
        }
        let text: String = table.next_value()?;
        let bytes = ByteString::unescape(&text).map_err(de::Error::custom)?;
        match table.next_key::<String>()? {
            None => Ok(bytes.into_bytes()),
            Some(_) => Err(wanted()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_read_back() {
        for bytes in [&b"plain"[..], b"", b"caf\xe9.txt", b"\\x41 \xff\\", "ü\u{fffd}".as_bytes(), b"\xc3"] {
            assert_eq!(ByteString::unescape(&escaped(bytes)), Ok(bytes.into()), "{bytes:?}");
        }
        assert_eq!(escaped(b"a\\b\xe9"), "a\\\\b\\xe9");
        assert_eq!(ByteString::from(&b"caf\xe9"[..]).to_string(), "caf\\xe9");
        assert_eq!(ByteString::from("a\\b").to_string(), "a\\b", "UTF-8 is shown unchanged");
    }

    #[test]
    fn invalid_escapes_are_refused() {
        for text in ["\\", "\\x", "\\x4", "\\xg0", "\\n", "\\x+1", "\\xé"] {
            assert!(ByteString::unescape(text).is_err(), "{text}");
        }
    }
}
