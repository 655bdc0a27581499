//! Text from outside, such as names in files and of devices, on its way to a terminal or a log.

use std::path::Path;

/// The largest number of characters of a name in a message.
const NAME_MAX: usize = 200;
/// The largest number of characters of a path in a message. The kernel opens no longer path.
const PATH_MAX: usize = 4096;

/// Returns `text` with control characters and invisible ones as escapes, such as `\u{1b}` and
/// `\n`, so that they neither control the terminal nor reorder or break its lines.
#[must_use]
pub fn printable(text: &str) -> String {
    bounded(text, usize::MAX)
}

/// Returns a name as [`printable`] does, with at most its first 200 characters.
#[must_use]
pub fn printable_name(name: &str) -> String {
    bounded(name, NAME_MAX)
}

/// Returns a path as [`printable`] does, with at most its first 4096 characters.
#[must_use]
pub fn printable_path(path: &Path) -> String {
    bounded(&path.to_string_lossy(), PATH_MAX)
}

/// Returns true for a character that a terminal shows as itself. Directional marks, the controls of
/// C1 and combining characters are none.
#[must_use]
pub fn is_printable(c: char) -> bool {
    "'\"\\".contains(c) || c.escape_debug().len() == 1
}

/// Returns the first `length` characters of `text`, printable, with `…` in place of the others.
fn bounded(text: &str, length: usize) -> String {
    let mut shown = String::new();
    for (number, c) in text.chars().enumerate() {
        match c {
            _ if number == length => {
                shown.push('…');
                break;
            }
            c if is_printable(c) => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_escaped_and_all_else_stays() {
        // ESC, BEL, DEL, a line end, CSI of C1, a directional override, a line separator, and a tag
        // outside of the basic plane.
        let hostile = "a\u{1b}[31m\u{7}\u{7f}\n\u{9b}2J\u{202e}\u{2028}\u{e0041}z";
        assert_eq!(printable(hostile), r"a\u{1b}[31m\u{7}\u{7f}\n\u{9b}2J\u{202e}\u{2028}\u{e0041}z");
        for text in ["mlx5_0 (node 1?)", r#"it's a "\x" Größe, 日本語"#, ""] {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn long_names_and_paths_are_cut() {
        let name = "ä".repeat(NAME_MAX);
        assert_eq!(printable_name(&name), name);
        assert_eq!(printable_name(&(name.clone() + "b")), name + "…");
        let path = "/".repeat(PATH_MAX + 1);
        assert_eq!(printable_path(Path::new(&path)).chars().count(), PATH_MAX + 1);
        assert_eq!(printable_path(Path::new("/a\n")), r"/a\n");
        assert_eq!(printable(&path), path);
    }
}
