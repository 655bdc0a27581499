//! The conversions between an error of this crate and its record.

use hostbuf_protocol::failure::{ErrorClass, MAX_OPERANDS};

use super::JobError;
use crate::error::{AttachError, Error, NoSpace};

impl From<&Error> for JobError {
    /// Makes the record of an error of this process. An error that this process has received keeps
    /// its record.
    fn from(error: &Error) -> JobError {
        let mut job_error = JobError::new(error.class(), error.to_string());
        match error {
            Error::NoSpace(NoSpace { host, requested, available, limit, remedy }) => {
                job_error.host = Some(host.clone());
                job_error.operands =
                    vec![requested.to_string(), available.to_string(), limit.clone(), remedy.clone()];
            }
            Error::Disagreed { host, rank, why } => {
                (job_error.host, job_error.rank) = (Some(host.clone()), Some(*rank));
                job_error.operands = vec![why.clone()];
            }
            Error::Attach(AttachError::JobFailed(error)) => return error.clone(),
            Error::Elsewhere { host, rank, message, .. } => {
                (job_error.host, job_error.rank) = (Some(host.clone()), Some(*rank));
                job_error.message.clone_from(message);
            }
            _ => {}
        }
        job_error
    }
}

impl From<Error> for JobError {
    fn from(error: Error) -> JobError {
        JobError::from(&error)
    }
}

impl From<JobError> for Error {
    /// Restores an error that this process has received: the typed error if the operands of its
    /// class are there, otherwise [`Error::Elsewhere`], or [`AttachError::JobFailed`] if the
    /// process that detected the error is known to have no rank.
    fn from(error: JobError) -> Error {
        let mut operands = error.operands.clone();
        operands.resize(MAX_OPERANDS, String::new());
        let host = error.host.clone().unwrap_or_else(|| "?".into());
        let rank = error.rank.unwrap_or_default();
        match (error.class, &operands[..]) {
            (ErrorClass::NoSpace, [requested, available, limit, remedy]) => {
                if let (Ok(requested), Ok(available)) = (requested.parse(), available.parse()) {
                    let (limit, remedy) = (limit.clone(), remedy.clone());
                    return Error::NoSpace(NoSpace { host, requested, available, limit, remedy });
                }
            }
            (ErrorClass::Disagreed, [why, ..]) if !why.is_empty() => {
                return Error::Disagreed { host, rank, why: why.clone() };
            }
            _ => {}
        }
        if error.host.is_some() && error.rank.is_none() {
            return AttachError::JobFailed(error).into();
        }
        Error::Elsewhere { host, rank, class: error.class, message: error.message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use hostbuf_protocol::failure::ErrorRecord;
    use hostbuf_register::{Access, Span};

    /// Returns `error` as another rank gets it.
    fn sent(error: &Error) -> Error {
        let mut received = JobError::decode(&JobError::from(error).encode()).expect("an error");
        received.host.get_or_insert("h1".into());
        received.rank.get_or_insert(4);
        received.into()
    }

    /// Returns one error of each variant.
    fn errors() -> Vec<Error> {
        let text = || String::from("x");
        let span = Span::new(4096, 4096).expect("a span");
        let why = text();
        let registration = hostbuf_register::Error::Registration {
            device: text(),
            memory: span.into(),
            access: Access::READ,
            why,
            source: None,
        };
        vec![
            Error::Unsupported { what: text(), why: text() },
            Error::NoSpace(NoSpace {
                host: "h2".into(),
                requested: 7,
                available: 3,
                limit: text(),
                remedy: text(),
            }),
            Error::Disagreed { host: "h2".into(), rank: 9, why: text() },
            Error::Invalid { what: text() },
            Error::Os { doing: text(), source: std::io::Error::other("x") },
            AttachError::AgentGone { why: text() }.into(),
            Error::Lost { why: text() },
            Error::Corrupt { word: "x", found: 0 },
            Error::Full { requested: 2, left: 1 },
            Error::Fill { why: text() },
            Error::Peer { host: 0, doing: text(), failure: Failure::GaveUp },
            Error::Freeze { why: text() },
            Error::Replicate { host: text(), why: text() },
            Error::Collective { operation: "x", why: text() },
            Error::Bootstrap { operation: "x", source: text().into() },
            registration.into(),
            Error::Register(hostbuf_register::Error::Forked),
        ]
    }

    #[test]
    fn an_error_keeps_its_class_and_message_on_the_way_to_another_rank() {
        for error in errors() {
            let there = sent(&error);
            assert_eq!(there.class(), error.class(), "{error:?}");
            match (&error, &there) {
                (Error::NoSpace(own), Error::NoSpace(received)) => assert_eq!(own, received),
                (Error::Disagreed { .. }, Error::Disagreed { .. }) => {
                    assert_eq!(there.to_string(), error.to_string());
                }
                (_, Error::Elsewhere { host, rank: 4, message, .. }) => {
                    assert_eq!((host.as_str(), message), ("h1", &error.to_string()));
                }
                _ => panic!("{error:?} became {there:?}"),
            }
            // A second group passes it on.
            assert_eq!(JobError::from(sent(&there)), JobError::from(there), "{error:?}");
        }
    }

    #[test]
    fn the_error_of_a_failed_job_is_the_record_of_its_origin() {
        let space = |host: &str| {
            let (host, limit, remedy) = (host.into(), "the pool".into(), "request less".into());
            Error::NoSpace(NoSpace { host, requested: 7, available: 3, limit, remedy })
        };
        for origin in [space("h2"), Error::Fill { why: "the file ends".into() }] {
            for rank in [None, Some(9)] {
                let mut record = JobError::from(&origin).with_host("h2");
                record.rank = rank;
                let failed = Error::from(AttachError::JobFailed(record.clone()));
                assert_eq!(JobError::from(&failed), record);
                let received =
                    Error::from(JobError::decode(&JobError::from(&failed).encode()).expect("an error"));
                match (&received, rank) {
                    (Error::NoSpace(received), _) => {
                        assert_eq!(Error::NoSpace(received.clone()).to_string(), space("h2").to_string());
                    }
                    (Error::Attach(AttachError::JobFailed(received)), None) => assert_eq!(*received, record),
                    (_, Some(_)) => assert_eq!(JobError::from(received), record),
                    _ => panic!("{record:?} became {received:?}"),
                }
            }
        }
    }

    #[test]
    fn an_error_is_the_same_on_the_other_side() {
        for error in errors() {
            let mut error = JobError::from(error);
            error.rank.get_or_insert(3);
            assert_eq!(JobError::decode(&error.encode()), Some(error));
        }
    }

    #[test]
    fn an_error_whose_operands_do_not_fit_keeps_its_class() {
        let long = "x".repeat(2 * ErrorRecord::SIZE);
        let space =
            NoSpace { host: "h1".into(), requested: 7, available: 3, limit: long, remedy: "y".into() };
        let there = sent(&Error::NoSpace(space));
        assert!(matches!(there, Error::Elsewhere { class: ErrorClass::NoSpace, .. }), "{there:?}");
    }

    #[test]
    fn the_class_of_an_error_has_the_name_of_its_variant() {
        for error in errors() {
            assert_eq!(error.kind(), format!("{:?}", error.class()));
        }
    }
}
