//! What is said to people on standard error.

/// As `eprintln!`, but where nobody reads any more (`2>&1 | head`) the words are lost and nothing else.
macro_rules! complain {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
