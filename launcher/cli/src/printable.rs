//! JSON from outside on its way to a terminal.

use hostbuf_os::printable::is_printable;
pub(crate) use hostbuf_os::printable::printable;

/// Returns the text of JSON in which all characters are printable. The escapes of JSON stand for
/// the same characters. Those that are not printable occur in strings only, apart from line ends.
pub(crate) fn printable_json(json: &serde_json::Value) -> String {
    let mut text = String::new();
    for c in format!("{json:#}\n").chars() {
        if c == '\n' || is_printable(c) {
            text.push(c);
        } else {
            text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ESC, BEL, DEL, a line end, CSI of C1, a directional override, a line separator, and a tag
    /// outside of the basic plane.
    const HOSTILE: &str = "a\u{1b}[31m\u{7}\u{7f}\n\u{9b}2J\u{202e}\u{2028}\u{e0041}z";

    #[test]
    fn json_is_printable_and_keeps_its_meaning() {
        let value = serde_json::json!({ "name": HOSTILE, "model": "Größe", "list": [1, null] });
        let text = printable_json(&value);
        assert!(text.chars().all(|c| c == '\n' || is_printable(c)), "{text}");
        assert!(text.contains("Größe") && text.contains(r"\u009b2J\u202e"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
