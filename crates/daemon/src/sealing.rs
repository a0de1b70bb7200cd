//! The cryptography of tokens: HMAC-SHA256 under keys from the system's randomness.

use crate::auth::{AuthError, new_nonce};
use amalgam_core::vocabulary::{Key, Mac, Sealing};
use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;

/// HMAC-SHA256 of the words, each as eight bytes, little-endian.
pub const HMAC: Mac = Mac {
    seal: |key, words| hmac(key, words).finalize().into_bytes().into(),
    // Takes constant time.
    verify: |key, words, tag| hmac(key, words).verify_truncated_left(tag).is_ok(),
};

fn hmac(key: &Key, words: &[u64]) -> Hmac<Sha256> {
    let mut hmac = Hmac::new_from_slice(&key.0).expect("a key of any length");
    words.iter().for_each(|word| hmac.update(&word.to_le_bytes()));
    hmac
}

/// Sealing with a new random root key, for one run of a process.
///
/// # Errors
/// If the system returns no random numbers.
pub fn new_sealing() -> Result<Sealing, AuthError> {
    Ok(Sealing { root: Key(new_nonce()?), mac: HMAC })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [u64; 3] = [1, 2, 0xfedc_ba98_7654_3210];

    fn key() -> Key {
        Key(std::array::from_fn(|byte| byte as u8))
    }

    /// Computed with Python: `hmac.new(bytes(range(32)), struct.pack('<3Q', 1, 2, 0xfedcba9876543210),
    /// 'sha256').digest()`.
    const KNOWN: [u8; 32] = [
        0x1a, 0x58, 0x9c, 0xfd, 0x7e, 0x3f, 0xa6, 0x63, 0xeb, 0x91, 0xc3, 0x08, 0xf5, 0x1f, 0x9b, 0x5c, 0xbe, 0x1c,
        0x22, 0x22, 0xda, 0x9b, 0xc1, 0x28, 0xa4, 0xd0, 0x07, 0x67, 0x1a, 0x7b, 0x3e, 0x3b,
    ];

    #[test]
    fn a_seal_equals_that_of_another_implementation() {
        assert_eq!((HMAC.seal)(&key(), &WORDS), KNOWN);
    }

    #[test]
    fn a_tag_is_valid_only_for_its_key_and_its_words() {
        let tag = std::array::from_fn(|byte| KNOWN[byte]);
        assert!((HMAC.verify)(&key(), &WORDS, &tag));
        assert!(!(HMAC.verify)(&Key([0; 32]), &WORDS, &tag));
        assert!(!(HMAC.verify)(&key(), &WORDS[..2], &tag));
        for byte in 0..tag.len() {
            let mut wrong = tag;
            wrong[byte] ^= 0x80;
            assert!(!(HMAC.verify)(&key(), &WORDS, &wrong), "byte {byte}");
        }
    }

    #[test]
    fn each_run_has_its_own_root() {
        let [one, other] = [(); 2].map(|()| new_sealing().unwrap().root);
        assert_ne!(one, other);
    }
}
