//! A hash that is the same on every machine and in every version.

/// FNV-1a (Fowler, Noll and Vo) over texts and numbers, in 64 bits. Collisions are easy to make on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// The bytes alone, as FNV-1a is defined.
    pub fn bytes(self, bytes: &[u8]) -> Fingerprint {
        Fingerprint(bytes.iter().fold(self.0, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// Includes the length first, so that `ab`, `c` and `a`, `bc` differ.
    pub fn sized(self, bytes: &[u8]) -> Fingerprint {
        self.number(bytes.len() as u64).bytes(bytes)
    }

    pub fn text(self, text: &str) -> Fingerprint {
        self.sized(text.as_bytes())
    }

    pub fn number(self, number: u64) -> Fingerprint {
        self.bytes(&number.to_le_bytes())
    }

    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a_and_depends_on_where_texts_end() {
        // From the authors' test vectors.
        assert_eq!(Fingerprint::default().bytes(b"foobar").value(), 0x8594_4171_f739_67e8);
        let of = |texts: [&str; 2]| texts.iter().fold(Fingerprint::default(), |print, text| print.text(text));
        assert_ne!(of(["ab", "c"]), of(["a", "bc"]));
    }
}
