//! Errors of loading as errors of the job.

use hostbuf::{ErrorClass, JobError};
use hostbuf_load::{LoadError, LoadErrorKind};
use hostbuf_os::process;

/// Returns the error of the job that an error of loading is.
#[must_use]
pub fn load_failure(error: LoadError) -> JobError {
    let class = match error.kind() {
        LoadErrorKind::Io | LoadErrorKind::Missing => ErrorClass::Os,
        LoadErrorKind::Damaged
        | LoadErrorKind::Unsupported
        | LoadErrorKind::Duplicate
        | LoadErrorKind::Argument => ErrorClass::Invalid,
        LoadErrorKind::Changed | LoadErrorKind::Memory => ErrorClass::Fill,
        LoadErrorKind::Job => ErrorClass::Collective,
        _ => ErrorClass::General,
    };
    let line = |host: &str, why: String| format!("cannot load files on {host}: {why}");
    match error {
        LoadError::Job(error) => error.into(),
        LoadError::Elsewhere { host, message, .. } => {
            JobError::new(class, line(&host, message)).with_host(host)
        }
        LoadError::NoRoom { .. } => {
            let why =
                "they have grown since their headers were read. Start the job again once they are complete";
            JobError::new(class, line(&process::host_name(), why.into()))
        }
        error => JobError::new(class, line(&process::host_name(), error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_the_class_of_its_cause() {
        let option = LoadError::Option { what: "x".into() };
        let error = load_failure(option);
        assert_eq!(error.class, ErrorClass::Invalid);
        assert_eq!(error.message, format!("cannot load files on {}: x", process::host_name()));
        let grown = LoadError::NoRoom { buffer: "loaded".into(), needed: 2, left: 1 };
        let error = load_failure(grown);
        assert_eq!(error.class, ErrorClass::Fill);
        assert!(error.message.contains("they have grown"), "{error}");
        let invalid = load_failure(LoadError::Job(hostbuf::Error::Invalid { what: "y".into() }));
        assert_eq!((invalid.class, invalid.message.as_str()), (ErrorClass::Invalid, "y"));
    }
}
