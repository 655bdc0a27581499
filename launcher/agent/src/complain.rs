//! Messages on standard error.

/// Prints a line on standard error as `eprintln!` does, but ignores failures: a reader may have gone (`2>&1 | head`).
#[macro_export]
macro_rules! complain {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
