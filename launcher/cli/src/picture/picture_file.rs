//! Pictures in files.

use std::path::Path;
use std::process::ExitCode;

use hostbuf::Error;
use hostbuf_agent::report::end;

use crate::printable::printable;
use crate::result_output::print_result;

/// Writes the picture of `command` to a file, or to standard output if `path` is `-`. Returns the
/// exit status.
pub(crate) fn write_picture(command: &str, path: &Path, picture: &str) -> ExitCode {
    if path == Path::new("-") {
        return print_result(command, picture, ExitCode::SUCCESS);
    }
    match std::fs::write(path, picture) {
        Ok(()) => ExitCode::SUCCESS,
        Err(source) => {
            let error = Error::Os { doing: format!("writing the picture {}", path.display()), source };
            end(command, error.class(), printable(&error.to_string()))
        }
    }
}
