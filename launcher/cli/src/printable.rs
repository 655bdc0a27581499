//! Text from outside, such as names of devices, on its way to a terminal.

/// Returns `text` with control characters and invisible ones as escapes, such as `\u{1b}` and
/// `\n`, so that they neither control the terminal nor reorder or break its lines.
pub(crate) fn printable(text: &str) -> String {
    let escaped = |c: char| match is_printable(c) {
        true => c.to_string(),
        false => c.escape_debug().to_string(),
    };
    text.chars().map(escaped).collect()
}

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

/// Returns true for a character that a terminal shows as itself. Directional marks, the controls of
/// C1 and combining characters are none.
fn is_printable(c: char) -> bool {
    "'\"\\".contains(c) || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ESC, BEL, DEL, a line end, CSI of C1, a directional override, a line separator, and a tag
    /// outside of the basic plane.
    const HOSTILE: &str = "a\u{1b}[31m\u{7}\u{7f}\n\u{9b}2J\u{202e}\u{2028}\u{e0041}z";

    #[test]
    fn controls_are_escaped_and_all_else_stays() {
        assert_eq!(printable(HOSTILE), r"a\u{1b}[31m\u{7}\u{7f}\n\u{9b}2J\u{202e}\u{2028}\u{e0041}z");
        for text in ["mlx5_0 (node 1?)", r#"it's a "\x" Größe, 日本語"#, ""] {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn json_is_printable_and_keeps_its_meaning() {
        let value = serde_json::json!({ "name": HOSTILE, "model": "Größe", "list": [1, null] });
        let text = printable_json(&value);
        assert!(text.chars().all(|c| c == '\n' || is_printable(c)), "{text}");
        assert!(text.contains("Größe") && text.contains(r"\u009b2J\u202e"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
