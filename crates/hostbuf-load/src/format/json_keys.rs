//! The keys of the outermost object of a JSON text.

use std::collections::HashSet;

/// Returns the keys of the outermost object of a JSON text, in the order of the text. The text is
/// valid JSON.
///
/// # Errors
/// The first key that occurs a second time. The parser of the header keeps only the last one of
/// equal keys.
pub(super) fn distinct_keys(text: &[u8]) -> Result<Vec<String>, String> {
    let keys: Vec<String> = spelled_keys(text).into_iter().map(unescaped).collect();
    let mut seen = HashSet::with_capacity(keys.len());
    match keys.iter().find(|key| !seen.insert(key.as_str())) {
        Some(twice) => Err(twice.clone()),
        None => Ok(keys),
    }
}

/// Returns the string of which a JSON text has this spelling between its quotes.
fn unescaped(spelling: &[u8]) -> String {
    let string = [&b"\""[..], spelling, b"\""].concat();
    serde_json::from_slice(&string).unwrap_or_else(|_| String::from_utf8_lossy(spelling).into_owned())
}

/// Returns the keys of the outermost object as the text spells them, without their quotes.
fn spelled_keys(text: &[u8]) -> Vec<&[u8]> {
    let (mut keys, mut depth, mut at) = (Vec::new(), 0usize, 0);
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let length = string_length(&text[at..]);
                let string = &text[at..at + length];
                at = (at + length + 1).min(text.len());
                let next = text[at..].iter().find(|byte| !byte.is_ascii_whitespace());
                if depth == 1 && next == Some(&b':') {
                    keys.push(string);
                }
            }
            _ => {}
        }
    }
    keys
}

/// Returns the number of bytes before the quote that ends a string.
fn string_length(text: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = text.iter().position(|&byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_outermost_object_are_found_in_their_order() {
        let text = br#" { "c" : {"a": 1, "b": ["a", "}"]}, "b\"":"a", "\u0061\\" : "d:", "": [{"c": 2}] } "#;
        assert_eq!(distinct_keys(text).as_deref(), Ok(&["c", "b\"", "a\\", ""].map(String::from)[..]));
    }

    #[test]
    fn the_first_key_that_occurs_again_is_an_error() {
        for (text, twice) in [
            (&br#"{"x":1,"y":{"x":2},"x":3}"#[..], "x"),
            (br#"{"b":1,"a":2,"b":3,"a":4}"#, "b"),
            (br#"{"a":1,"\u0061":2}"#, "a"),
        ] {
            assert_eq!(distinct_keys(text), Err(twice.into()));
        }
    }

    #[test]
    fn texts_that_end_early_have_keys_up_to_there() {
        for text in [&b""[..], b"{", b"{\"", b"{\"a", b"{\"a\"", b"{\"a\\", b"}}]"] {
            assert_eq!(distinct_keys(text), Ok(Vec::new()));
        }
    }
}
