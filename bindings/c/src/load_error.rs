//! The status of an error of loading.

use ::hostbuf_load::{FileProblem, LoadError, LoadErrorKind};

use crate::status::{CallError, hostbuf_status as S};
use crate::transfer::transfer_error;

/// Returns the error of a call for an error of loading.
pub(crate) fn load_error(error: LoadError) -> CallError {
    let status = match &error {
        LoadError::Job(_) => S::HOSTBUF_DEFECT,
        LoadError::Transfer(error) => return transfer_error(error),
        LoadError::Elsewhere { .. } => S::HOSTBUF_ELSEWHERE,
        LoadError::NoRoom { .. } => S::HOSTBUF_FULL,
        LoadError::Filled { .. } => S::HOSTBUF_FILL,
        LoadError::NotLoaded { .. } | LoadError::NoTensor { .. } => S::HOSTBUF_NOTHING,
        LoadError::File(error) => match error.problem {
            FileProblem::Io { .. } => S::HOSTBUF_OS,
            FileProblem::Unsupported { .. } => S::HOSTBUF_UNSUPPORTED,
            FileProblem::DuplicateTensor { .. }
            | FileProblem::TwoForms { .. }
            | FileProblem::EmptyFolder
            | FileProblem::NoPaths => S::HOSTBUF_INVALID,
            FileProblem::Changed { .. } | FileProblem::OtherVersion { .. } => S::HOSTBUF_CHANGED,
            _ => S::HOSTBUF_DAMAGED,
        },
        other => match other.kind() {
            LoadErrorKind::Damaged => S::HOSTBUF_DAMAGED,
            LoadErrorKind::Argument | LoadErrorKind::Memory => S::HOSTBUF_INVALID,
            _ => S::HOSTBUF_DEFECT,
        },
    };
    match error {
        LoadError::Job(error) => error.into(),
        error => CallError::Status(status, error.to_string()),
    }
}
