//! The end of a command of hostbuf by the class of its error.

use std::fmt::Display;
use std::process::ExitCode;

pub use hostbuf::ErrorClass as ExitClass;

/// Prints one line on standard error, with `speaker` in front, and returns the exit status of the
/// process.
pub fn end(speaker: &str, class: ExitClass, message: impl Display) -> ExitCode {
    complain!("{speaker}: {message}");
    exit_code(class)
}

/// Returns the exit status of a process whose error another process prints.
pub fn exit_code(class: ExitClass) -> ExitCode {
    ExitCode::from(class.status())
}
