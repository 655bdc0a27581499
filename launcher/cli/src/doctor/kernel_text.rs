//! Text from the kernel: its settings and the names of its errors.

/// Returns the text of a file in /proc or /sys, without the line's end.
pub(super) fn knob(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the kernel's text for an error, without the number.
pub(super) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_no_number() {
        assert_eq!(reason(&std::io::Error::from_raw_os_error(libc::ENOSYS)), "Function not implemented");
    }
}
