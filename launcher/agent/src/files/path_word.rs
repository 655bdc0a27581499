//! Paths as words of a command line. Engines pass words through shells and interpret some
//! characters, and paths need not be UTF-8, so most bytes are written in hexadecimal.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The byte in front of two hexadecimal digits.
const ESCAPE: u8 = b'+';

/// Returns whether a byte stands for itself.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)
}

/// Encodes a path as a word of letters, digits, `/`, `.`, `_`, `-` and `+`.
#[must_use]
pub fn word_of_path(path: &Path) -> String {
    let mut word = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if is_plain(byte) {
            word.push(byte.into());
        } else {
            word += &format!("{}{byte:02x}", char::from(ESCAPE));
        }
    }
    word
}

/// Decodes a word of [`word_of_path`]. Returns `None` if it is not one.
#[must_use]
pub fn path_of_word(word: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = if *byte == ESCAPE {
            let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            &behind[2..]
        } else {
            bytes.push(Some(*byte).filter(|byte| is_plain(*byte))?);
            behind
        };
    }
    Some(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn every_path_survives_as_a_word() {
        let all: Vec<u8> = (1..=255).collect();
        for bytes in [&all[..], b"", b"/db/hash.k2d", b"a b+c%20,\n'\"$(x)"] {
            let path = Path::new(OsStr::from_bytes(bytes));
            let word = word_of_path(path);
            assert!(word.bytes().all(|byte| is_plain(byte) || byte == ESCAPE), "{word}");
            assert_eq!(path_of_word(&word).as_deref(), Some(path));
        }
        assert_eq!(word_of_path(Path::new("/db/hash.k2d")), "/db/hash.k2d");
    }

    #[test]
    fn other_words_are_refused() {
        for word in ["a b", "+", "+4", "+4g", "++1", "+\u{e4}1", "\u{e4}"] {
            assert_eq!(path_of_word(word), None, "{word}");
        }
    }
}
