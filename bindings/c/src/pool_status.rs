//! The statuses of a pool's errors.

use std::io::ErrorKind;

use ::hostbuf_pool::{AcquireError, BrokerRefusal, PoolError, ReadyError, TakeError};
use hostbuf_cuda::CudaError;

use crate::status::{CallError, hostbuf_status as S, status_of};

fn status_of_pool(error: PoolError) -> S {
    match error {
        PoolError::NoBroker { .. } | PoolError::BrokerGone => S::HOSTBUF_NO_BROKER,
        PoolError::Refused(BrokerRefusal::NoSpace { .. }) => S::HOSTBUF_NO_SPACE,
        PoolError::Refused(BrokerRefusal::UnknownSegment) => S::HOSTBUF_GONE,
        PoolError::Refused(_) => S::HOSTBUF_REFUSED,
        PoolError::Timeout { .. } => S::HOSTBUF_TIMEOUT,
        PoolError::Invalid { .. } => S::HOSTBUF_INVALID,
        PoolError::Forked => S::HOSTBUF_FORKED,
        PoolError::Memory(error) => status_of(&error.into()),
        PoolError::Os { source, .. } if source.kind() == ErrorKind::OutOfMemory => S::HOSTBUF_NO_SPACE,
        PoolError::Os { .. } => S::HOSTBUF_OS,
        PoolError::Gpu(_) => S::HOSTBUF_UNSUPPORTED,
        _ => S::HOSTBUF_DEFECT,
    }
}

pub fn pool_error(error: PoolError) -> CallError {
    let message = error.to_string();
    CallError::Status(status_of_pool(error), message)
}

pub fn take_error(error: TakeError) -> CallError {
    let message = error.to_string();
    match error {
        TakeError::Timeout { .. } => CallError::Status(S::HOSTBUF_TIMEOUT, message),
        TakeError::Closed => CallError::Status(S::HOSTBUF_CLOSED, message),
        TakeError::Pool(error) => CallError::Status(status_of_pool(error), message),
        _ => CallError::Status(S::HOSTBUF_DEFECT, message),
    }
}

pub fn ready_error(error: ReadyError) -> CallError {
    let message = error.to_string();
    let status = match error {
        ReadyError::ProducerEnded { .. } => S::HOSTBUF_GONE,
        ReadyError::Forked => S::HOSTBUF_FORKED,
        _ => S::HOSTBUF_UNSUPPORTED,
    };
    CallError::Status(status, message)
}

pub fn cuda_error(error: CudaError) -> CallError {
    let status = match error {
        CudaError::Forked { .. } => S::HOSTBUF_FORKED,
        _ => S::HOSTBUF_UNSUPPORTED,
    };
    CallError::Status(status, error.to_string())
}

pub fn acquire_error(error: AcquireError) -> CallError {
    let message = match &error {
        AcquireError::OnGpu { gpu } => {
            format!("the block lies on {gpu}: use hostbuf_pool_acquire_gpu in a process that sees this GPU")
        }
        AcquireError::OnHost => "the block lies on the host: use hostbuf_pool_acquire".to_owned(),
        error => error.to_string(),
    };
    let status = match error {
        AcquireError::InvalidToken(_) | AcquireError::OtherPool { .. } => S::HOSTBUF_INVALID_TOKEN,
        AcquireError::Gone => S::HOSTBUF_GONE,
        AcquireError::NotPublished => S::HOSTBUF_NOT_PUBLISHED,
        AcquireError::OutOfRange => S::HOSTBUF_OUT_OF_RANGE,
        AcquireError::Quota { .. } => S::HOSTBUF_QUOTA,
        AcquireError::InvalidHeader(_) => S::HOSTBUF_INVALID_HEADER,
        AcquireError::OnGpu { .. } | AcquireError::Gpu(_) => S::HOSTBUF_UNSUPPORTED,
        AcquireError::OnHost => S::HOSTBUF_INVALID,
        AcquireError::Pool(error) => status_of_pool(error),
        _ => S::HOSTBUF_DEFECT,
    };
    CallError::Status(status, message)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use ::hostbuf_pool::{InvalidHeader, InvalidToken};

    use super::*;

    fn of(error: CallError) -> S {
        match error {
            CallError::Status(status, message) => {
                assert!(!message.is_empty());
                status
            }
            _ => S::HOSTBUF_OK,
        }
    }

    #[test]
    fn each_error_of_a_pool_has_a_status() {
        let text = || String::from("x");
        let no_space = BrokerRefusal::NoSpace { requested: 2, available: 1, details: text() };
        let no_memory = io::Error::from(ErrorKind::OutOfMemory);
        for (error, status) in [
            (PoolError::NoBroker { why: text() }, S::HOSTBUF_NO_BROKER),
            (PoolError::BrokerGone, S::HOSTBUF_NO_BROKER),
            (PoolError::Refused(no_space), S::HOSTBUF_NO_SPACE),
            (PoolError::Refused(BrokerRefusal::UnknownSegment), S::HOSTBUF_GONE),
            (PoolError::Refused(BrokerRefusal::NoRow { readers: 1 }), S::HOSTBUF_REFUSED),
            (PoolError::Refused(BrokerRefusal::Failed(text())), S::HOSTBUF_REFUSED),
            (PoolError::Timeout { doing: text(), broker: None, limit: Duration::ZERO }, S::HOSTBUF_TIMEOUT),
            (PoolError::Invalid { what: text() }, S::HOSTBUF_INVALID),
            (PoolError::Forked, S::HOSTBUF_FORKED),
            (PoolError::Os { doing: text(), source: no_memory }, S::HOSTBUF_NO_SPACE),
            (PoolError::Os { doing: text(), source: io::Error::other("x") }, S::HOSTBUF_OS),
        ] {
            assert_eq!(of(pool_error(error)), status);
        }
        for (error, status) in [
            (AcquireError::InvalidToken(InvalidToken::Damaged), S::HOSTBUF_INVALID_TOKEN),
            (AcquireError::Gone, S::HOSTBUF_GONE),
            (AcquireError::NotPublished, S::HOSTBUF_NOT_PUBLISHED),
            (AcquireError::OutOfRange, S::HOSTBUF_OUT_OF_RANGE),
            (AcquireError::Quota { quota: 1 }, S::HOSTBUF_QUOTA),
            (AcquireError::InvalidHeader(InvalidHeader::Damaged), S::HOSTBUF_INVALID_HEADER),
            (AcquireError::Pool(PoolError::Forked), S::HOSTBUF_FORKED),
            (AcquireError::OnGpu { gpu: text() }, S::HOSTBUF_UNSUPPORTED),
            (AcquireError::OnHost, S::HOSTBUF_INVALID),
        ] {
            assert_eq!(of(acquire_error(error)), status);
        }
        let ended = ReadyError::ProducerEnded { driver: None };
        for (error, status) in [(ended, S::HOSTBUF_GONE), (ReadyError::Forked, S::HOSTBUF_FORKED)] {
            assert_eq!(of(ready_error(error)), status);
        }
        assert_eq!(of(cuda_error(CudaError::Forked { host: text() })), S::HOSTBUF_FORKED);
        let late = TakeError::Timeout { limit: Duration::ZERO, details: text() };
        assert_eq!(of(take_error(late)), S::HOSTBUF_TIMEOUT);
        assert_eq!(of(take_error(TakeError::Closed)), S::HOSTBUF_CLOSED);
        assert_eq!(of(take_error(PoolError::Forked.into())), S::HOSTBUF_FORKED);
    }
}
