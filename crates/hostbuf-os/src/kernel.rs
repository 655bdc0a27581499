//! The version of the running kernel.

/// Returns the version as `(major, minor)`, or `(0, 0)` if it is unknown.
#[must_use]
pub fn version() -> (u32, u32) {
    nix::sys::utsname::uname().map_or((0, 0), |names| parse(&names.release().to_string_lossy()))
}

fn parse(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed() {
        assert_eq!(parse("6.1.0-32-amd64"), (6, 1));
        assert_eq!(parse("5.15"), (5, 15));
        assert_eq!(parse("6+"), (6, 0));
        assert_eq!(parse(""), (0, 0));
        assert!(version() > (2, 0));
    }
}
