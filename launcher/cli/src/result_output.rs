//! The result of a command on standard output.

use std::io::{self, Write as _};
use std::process::ExitCode;

use hostbuf::Error;
use hostbuf_agent::report::end;

/// Writes the result of `command`, and returns `status`, or that of the error.
pub(crate) fn print_result(command: &str, text: &str, status: ExitCode) -> ExitCode {
    match write_result(text) {
        Ok(()) => status,
        Err(error) => end(command, error.class(), error),
    }
}

/// Writes a result, or a part of one.
///
/// # Errors
/// As [`written`].
pub(crate) fn write_result(text: &str) -> Result<(), Error> {
    let mut output = io::stdout().lock();
    written(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

/// Returns the result of a write to standard output. A reader that has ended (`hostbuf stat | head
/// -1`) needs no more.
///
/// # Errors
/// [`Error::Os`], for example if the disk of a redirected output is full.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Error> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Os { doing: "writing to standard output".into(), source })
        }
        _ => Ok(()),
    }
}
