//! Messages on standard error.

/// Prints one line as `eprintln!` does, but in a single write, so that the lines of several
/// processes do not mix, and without a panic if standard error is closed (`2>&1 | head`).
#[macro_export]
macro_rules! complain {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let line = format!("{}\n", format_args!($($words)*));
        let _ = std::io::stderr().write_all(line.as_bytes());
    }};
}
