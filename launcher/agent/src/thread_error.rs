//! The error of a thread that could not be started.

use hostbuf::Error;
use hostbuf_os::process;

/// Returns the error of a thread that could not be started.
pub(super) fn unstarted_thread(source: std::io::Error) -> Error {
    let (host, remedy) = (process::host_name(), process::start_remedy(&source));
    Error::Os { doing: format!("starting a thread of the agent on {host}{remedy}"), source }
}
