//! The status of a call, and its message.

#![allow(unsafe_code, reason = "the functions are called by C")]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use library::job::{Collective, TEXT_MAX, all_or_none};
use library::{AttachError, Error, ErrorClass, register};

/// The status that a call returns. `hostbuf_message` returns the details.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum hostbuf_status {
    /// The call succeeded.
    HOSTBUF_OK = 0,
    /// An argument is invalid: null, out of range, or not text.
    HOSTBUF_INVALID = 1,
    /// This host or this build does not support the request.
    HOSTBUF_UNSUPPORTED = 2,
    /// The host does not have enough memory. The check precedes every change.
    HOSTBUF_NO_SPACE = 3,
    /// The ranks found no common address, or requested different buffers.
    HOSTBUF_DISAGREED = 4,
    /// A system call failed.
    HOSTBUF_OS = 5,
    /// There is no buffer to attach to.
    HOSTBUF_ATTACH = 6,
    /// A rank exited before all ranks had the buffer.
    HOSTBUF_LOST = 7,
    /// A word of the control page has an invalid value.
    HOSTBUF_CORRUPT = 8,
    /// The arena has no room.
    HOSTBUF_FULL = 9,
    /// Filling failed in this process.
    HOSTBUF_FILL = 10,
    /// An RDMA operation on another host failed.
    HOSTBUF_PEER = 11,
    /// The buffer cannot be frozen.
    HOSTBUF_FREEZE = 12,
    /// The received bytes differ from the sent bytes.
    HOSTBUF_REPLICATE = 13,
    /// A function of the collective failed.
    HOSTBUF_COLLECTIVE = 14,
    /// A device refused to register or deregister memory.
    HOSTBUF_REGISTRATION = 15,
    /// A registration cache has no room.
    HOSTBUF_BUDGET = 16,
    /// An allocator of registered memory has reached its limit.
    HOSTBUF_LIMIT = 17,
    /// A forked child used an object that belongs to its parent.
    HOSTBUF_FORKED = 18,
    /// Another rank of the same collective call failed.
    HOSTBUF_ELSEWHERE = 19,
    /// No error: the object does not exist, or is not available without waiting.
    HOSTBUF_NOTHING = 20,
    /// A defect of hostbuf: please report the message.
    HOSTBUF_DEFECT = 21,
    /// The job has failed, so no process can attach. The message is that of the job's error.
    HOSTBUF_JOB_FAILED = 22,
    /// The time limit is over: no block became free, or the pool's broker has not answered.
    HOSTBUF_TIMEOUT = 23,
    /// There is no broker for the pool, or it has ended.
    HOSTBUF_NO_BROKER = 24,
    /// The pool's broker has refused the request.
    HOSTBUF_REFUSED = 25,
    /// The content of a token is gone: its producer has reused the block, or has ended.
    HOSTBUF_GONE = 26,
    /// The producer has not published the content of a token.
    HOSTBUF_NOT_PUBLISHED = 27,
    /// This process holds as many blocks of a producer as it may.
    HOSTBUF_QUOTA = 28,
    /// A token names a block or a length that its producer does not have.
    HOSTBUF_OUT_OF_RANGE = 29,
    /// The bytes are no token, or a damaged one.
    HOSTBUF_INVALID_TOKEN = 30,
    /// The description of a block is damaged.
    HOSTBUF_INVALID_HEADER = 31,
    /// The producer that a program waited for is closed.
    HOSTBUF_CLOSED = 32,
    /// A file ends before the end of the transfer.
    HOSTBUF_END_OF_FILE = 33,
    /// The transfer was cancelled.
    HOSTBUF_CANCELLED = 34,
    /// A GPU has failed during a transfer, or its context was lost.
    HOSTBUF_GPU_FAILED = 35,
    /// A file, a set of files, or the description of the tensors in a buffer is damaged.
    HOSTBUF_DAMAGED = 36,
    /// A file has changed while it was loaded, or differs between the ranks.
    HOSTBUF_CHANGED = 37,
}

use hostbuf_status as S;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// The reason why a call does not return `HOSTBUF_OK`.
pub enum CallError {
    Failed(Error),
    /// The description of an invalid argument.
    Argument(String),
    Nothing(String),
    /// The status and the message of an error of a pool, a transfer or a load.
    Status(hostbuf_status, String),
}

impl<E: Into<Error>> From<E> for CallError {
    fn from(error: E) -> CallError {
        CallError::Failed(error.into())
    }
}

pub type CallResult<T> = Result<T, CallError>;

pub fn argument(what: impl Into<String>) -> CallError {
    CallError::Argument(what.into())
}

/// Runs a call, and stores its message for the calling thread. A panic becomes `HOSTBUF_DEFECT`.
pub fn call(work: impl FnOnce() -> CallResult<()>) -> hostbuf_status {
    let (status, message) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return S::HOSTBUF_OK,
        Ok(Err(CallError::Failed(error))) => (status_of(&error), error.to_string()),
        Ok(Err(CallError::Argument(what))) => (S::HOSTBUF_INVALID, what),
        Ok(Err(CallError::Nothing(why))) => (S::HOSTBUF_NOTHING, why),
        Ok(Err(CallError::Status(status, message))) => (status, message),
        Err(panic) => (S::HOSTBUF_DEFECT, format!("hostbuf panicked: {}", words(&*panic))),
    };
    set_message(message);
    status
}

/// Stores a message for the calling thread, cut at [`TEXT_MAX`] bytes. Control characters, such as
/// line breaks in texts of the program, become spaces.
pub fn set_message(mut message: String) {
    if message.len() > TEXT_MAX {
        let end = (0..=TEXT_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
    }
    let line: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = CString::new(line).unwrap_or_default();
    // A thread that is exiting has no storage left, and cannot read the message.
    let _ = MESSAGE.try_with(|stored| stored.replace(text));
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

pub fn status_of(error: &Error) -> hostbuf_status {
    match error {
        Error::Invalid { .. } => S::HOSTBUF_INVALID,
        // The kernel reports a lack of memory as its own error too.
        Error::Os { .. } if error.class() == ErrorClass::NoSpace => S::HOSTBUF_NO_SPACE,
        Error::Memory(_) if error.class() == ErrorClass::Fill => S::HOSTBUF_FILL,
        Error::Unsupported { .. } | Error::Memory(_) => S::HOSTBUF_UNSUPPORTED,
        Error::NoSpace { .. } => S::HOSTBUF_NO_SPACE,
        Error::Disagreed { .. } => S::HOSTBUF_DISAGREED,
        Error::Os { .. } => S::HOSTBUF_OS,
        Error::Attach(AttachError::JobFailed(_)) => S::HOSTBUF_JOB_FAILED,
        Error::Attach(_) => S::HOSTBUF_ATTACH,
        Error::Lost { .. } => S::HOSTBUF_LOST,
        Error::Corrupt { .. } => S::HOSTBUF_CORRUPT,
        Error::Full { .. } => S::HOSTBUF_FULL,
        Error::Fill { .. } => S::HOSTBUF_FILL,
        Error::Peer { .. } => S::HOSTBUF_PEER,
        Error::Freeze { .. } => S::HOSTBUF_FREEZE,
        Error::Replicate { .. } => S::HOSTBUF_REPLICATE,
        Error::Collective { .. } | Error::Bootstrap { .. } => S::HOSTBUF_COLLECTIVE,
        Error::Register(register::Error::Registration { .. }) => S::HOSTBUF_REGISTRATION,
        Error::Register(register::Error::Budget { .. }) => S::HOSTBUF_BUDGET,
        Error::Register(register::Error::Limit { .. }) => S::HOSTBUF_LIMIT,
        Error::Register(register::Error::Forked) => S::HOSTBUF_FORKED,
        Error::Elsewhere { .. } => S::HOSTBUF_ELSEWHERE,
        Error::Register(register::Error::OtherCopy { .. }) => S::HOSTBUF_UNSUPPORTED,
        _ => S::HOSTBUF_DEFECT,
    }
}

/// Returns the message of the calling thread's last call that did not return `HOSTBUF_OK`: one line
/// with the request, the available resources and the remedy. `hostbuf_device_probe`,
/// `hostbuf_freeze` and `hostbuf_gpu_section_freeze` also set it when they return `HOSTBUF_OK`. It
/// is empty before the first such call, valid until the thread's next one, and never null.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_message() -> *const c_char {
    const NONE: &CStr = c"";
    MESSAGE.try_with(|text| text.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}

/// Returns the name of a status, such as `"HOSTBUF_OK"`, or `"?"` for an invalid number. The result
/// is never null.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 38] = [
        c"HOSTBUF_OK",
        c"HOSTBUF_INVALID",
        c"HOSTBUF_UNSUPPORTED",
        c"HOSTBUF_NO_SPACE",
        c"HOSTBUF_DISAGREED",
        c"HOSTBUF_OS",
        c"HOSTBUF_ATTACH",
        c"HOSTBUF_LOST",
        c"HOSTBUF_CORRUPT",
        c"HOSTBUF_FULL",
        c"HOSTBUF_FILL",
        c"HOSTBUF_PEER",
        c"HOSTBUF_FREEZE",
        c"HOSTBUF_REPLICATE",
        c"HOSTBUF_COLLECTIVE",
        c"HOSTBUF_REGISTRATION",
        c"HOSTBUF_BUDGET",
        c"HOSTBUF_LIMIT",
        c"HOSTBUF_FORKED",
        c"HOSTBUF_ELSEWHERE",
        c"HOSTBUF_NOTHING",
        c"HOSTBUF_DEFECT",
        c"HOSTBUF_JOB_FAILED",
        c"HOSTBUF_TIMEOUT",
        c"HOSTBUF_NO_BROKER",
        c"HOSTBUF_REFUSED",
        c"HOSTBUF_GONE",
        c"HOSTBUF_NOT_PUBLISHED",
        c"HOSTBUF_QUOTA",
        c"HOSTBUF_OUT_OF_RANGE",
        c"HOSTBUF_INVALID_TOKEN",
        c"HOSTBUF_INVALID_HEADER",
        c"HOSTBUF_CLOSED",
        c"HOSTBUF_END_OF_FILE",
        c"HOSTBUF_CANCELLED",
        c"HOSTBUF_GPU_FAILED",
        c"HOSTBUF_DAMAGED",
        c"HOSTBUF_CHANGED",
    ];
    usize::try_from(status).ok().and_then(|at| NAMES.get(at)).unwrap_or(&c"?").as_ptr()
}

/// Lets the ranks of a group agree on whether their arguments are valid. If the argument of one
/// rank is invalid, all ranks return an error.
pub fn agree<T>(group: &dyn Collective, given: CallResult<T>) -> CallResult<T> {
    let mut own = None;
    let given = given.map_err(|trouble| match trouble {
        CallError::Failed(error) => error,
        CallError::Argument(what) | CallError::Nothing(what) => Error::Invalid { what },
        CallError::Status(status, what) => {
            own = Some(status);
            Error::Invalid { what }
        }
    });
    all_or_none(group, given).map_err(|error| match (error, own) {
        (Error::Invalid { what }, Some(status)) => CallError::Status(status, what),
        (error, _) => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use library::{Access, Failure, JobError, NoSpace, Span};

    use super::*;

    /// Returns one error of each kind.
    fn errors() -> Vec<Error> {
        let text = || String::from("x");
        let span = Span::new(4096, 4096).expect("a span");
        vec![
            Error::Unsupported { what: text(), why: text() },
            Error::NoSpace(NoSpace {
                host: text(),
                requested: 2,
                available: 1,
                limit: text(),
                remedy: text(),
            }),
            Error::Disagreed { host: text(), rank: 0, why: text() },
            Error::Invalid { what: text() },
            Error::Os { doing: text(), source: std::io::Error::other("x") },
            AttachError::AgentGone { why: text() }.into(),
            AttachError::JobFailed(JobError::new(ErrorClass::NoSpace, text())).into(),
            Error::Lost { why: text() },
            Error::Corrupt { word: "x", found: 0 },
            Error::Full { requested: 2, left: 1 },
            Error::Fill { why: text() },
            Error::Peer { host: 0, doing: text(), failure: Failure::GaveUp },
            Error::Freeze { why: text() },
            Error::Replicate { host: text(), why: text() },
            Error::Collective { operation: "x", why: text() },
            register::Error::Registration {
                device: text(),
                memory: span.into(),
                access: Access::READ,
                why: text(),
                source: None,
            }
            .into(),
            register::Error::Budget {
                device: text(),
                span,
                registrations: (0, 1),
                bytes: (0, 1),
                leased: false,
            }
            .into(),
            register::Error::Limit { device: text(), requested: 1, block: 1, registered: 0, limit: 0 }.into(),
            register::Error::Forked.into(),
            Error::Elsewhere { host: text(), rank: 0, class: ErrorClass::General, message: text() },
        ]
    }

    #[test]
    fn a_long_message_is_cut_at_the_end_of_a_character() {
        set_message(format!("x{}", "é".repeat(TEXT_MAX)));
        // SAFETY: the message of this thread, which ends with NUL.
        let message = unsafe { CStr::from_ptr(hostbuf_message()) };
        assert_eq!(message.to_str().map(str::len), Ok(TEXT_MAX - 1));
    }

    #[test]
    fn a_lack_of_memory_has_one_status() {
        let no_memory = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let error = Error::Os { doing: "mapping a page".into(), source: no_memory };
        assert_eq!(status_of(&error), S::HOSTBUF_NO_SPACE);
    }

    #[test]
    fn a_failed_bootstrap_has_the_status_of_a_failed_collective() {
        let error = Error::Bootstrap { operation: "connect", source: "x".into() };
        assert_eq!(status_of(&error), S::HOSTBUF_COLLECTIVE);
        assert_eq!(error.kind(), "Collective");
    }

    #[test]
    fn each_kind_of_error_has_the_status_of_its_name() {
        let mut seen = std::collections::BTreeSet::new();
        for error in errors() {
            let status = status_of(&error);
            // `NoSpace` is HOSTBUF_NO_SPACE.
            let mut wanted = String::from("HOSTBUF");
            for c in error.kind().chars() {
                if c.is_uppercase() {
                    wanted.push('_');
                }
                wanted.push(c.to_ascii_uppercase());
            }
            // SAFETY: a static string.
            let name = unsafe { CStr::from_ptr(hostbuf_status_name(status as i32)) };
            assert_eq!(name.to_str(), Ok(wanted.as_str()));
            assert_eq!(wanted, format!("{status:?}"));
            assert!(seen.insert(wanted));
        }
        // OK, NOTHING and DEFECT are no errors of the library, and pools have errors of their own.
        assert_eq!(seen.len(), S::HOSTBUF_TIMEOUT as usize - 3);
    }
}
