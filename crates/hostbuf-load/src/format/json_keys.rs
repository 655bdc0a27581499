//! The keys of the outermost object of a JSON text.

/// Returns a key that occurs twice in the outermost object of a JSON text, as the text spells it.
/// The parser of the header keeps only the last one of equal keys. The text is valid JSON.
pub(super) fn duplicate_key(text: &[u8]) -> Option<String> {
    let mut keys = keys(text);
    keys.sort_unstable();
    let twice = keys.windows(2).find(|pair| pair[0] == pair[1])?;
    Some(String::from_utf8_lossy(twice[0]).into_owned())
}

/// Returns the keys of the outermost object, without their quotes.
fn keys(text: &[u8]) -> Vec<&[u8]> {
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
    fn keys_of_the_outermost_object_are_found() {
        let text = br#" { "a" : {"a": 1, "b": ["a", "}"]}, "b\"":"a", "c\\" : "d:", "": [{"c": 2}] } "#;
        let found: Vec<_> = keys(text).into_iter().map(String::from_utf8_lossy).collect();
        assert_eq!(found, ["a", "b\\\"", "c\\\\", ""]);
        assert_eq!(duplicate_key(text), None);
        assert_eq!(duplicate_key(br#"{"x":1,"y":{"x":2},"x":3}"#), Some("x".into()));
    }

    #[test]
    fn texts_that_end_early_have_keys_up_to_there() {
        for text in [&b""[..], b"{", b"{\"", b"{\"a", b"{\"a\"", b"{\"a\\", b"}}]"] {
            assert_eq!(duplicate_key(text), None);
        }
    }
}
