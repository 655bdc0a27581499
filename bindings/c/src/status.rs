//! How a call ended, and the message that goes with it.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use library::job::{Collective, all_or_none};
use library::{Error, register};

/// How a call ended. The message of the calling thread says more: `hostbuf_message`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum hostbuf_status {
    /// As it should.
    HOSTBUF_OK = 0,
    /// An argument makes no sense: null, out of range, or not text.
    HOSTBUF_INVALID = 1,
    /// This host, or this build, cannot do it.
    HOSTBUF_UNSUPPORTED = 2,
    /// Not enough memory, found out before anything was touched.
    HOSTBUF_NO_SPACE = 3,
    /// The ranks found no common address, or asked for different things.
    HOSTBUF_DISAGREED = 4,
    /// The kernel refused.
    HOSTBUF_OS = 5,
    /// There is nothing to attach to.
    HOSTBUF_ATTACH = 6,
    /// A rank ended before all had the buffer.
    HOSTBUF_LOST = 7,
    /// A word of the control page makes no sense.
    HOSTBUF_CORRUPT = 8,
    /// The arena has no room.
    HOSTBUF_FULL = 9,
    /// Filling did not end well in this process.
    HOSTBUF_FILL = 10,
    /// An operation on another host by RDMA has failed.
    HOSTBUF_PEER = 11,
    /// The buffer could not be frozen.
    HOSTBUF_FREEZE = 12,
    /// What arrived is not what was sent.
    HOSTBUF_REPLICATE = 13,
    /// A function of the collective failed.
    HOSTBUF_COLLECTIVE = 14,
    /// A device refused to register memory, or to end that.
    HOSTBUF_REGISTRATION = 15,
    /// A registration cache has no room.
    HOSTBUF_BUDGET = 16,
    /// An allocator of registered memory is at its limit.
    HOSTBUF_LIMIT = 17,
    /// A forked child asked for what is its parent's.
    HOSTBUF_FORKED = 18,
    /// Another rank of the same collective call failed.
    HOSTBUF_ELSEWHERE = 19,
    /// Nothing is wrong: it is not there, or cannot be had without waiting.
    HOSTBUF_NOTHING = 20,
    /// A defect of hostbuf: please report the message.
    HOSTBUF_DEFECT = 21,
}

use hostbuf_status as S;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// What a function of this library ends with when it does not go well.
pub enum Trouble {
    Failed(Error),
    /// An argument, said for people.
    Argument(String),
    Nothing(String),
}

impl<E: Into<Error>> From<E> for Trouble {
    fn from(error: E) -> Trouble {
        Trouble::Failed(error.into())
    }
}

pub type Outcome<T> = Result<T, Trouble>;

pub fn argument(what: impl Into<String>) -> Trouble {
    Trouble::Argument(what.into())
}

/// Carries out a call: its status, with the message kept for the thread. Panics end here.
pub fn call(work: impl FnOnce() -> Outcome<()>) -> hostbuf_status {
    let (status, message) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return S::HOSTBUF_OK,
        Ok(Err(Trouble::Failed(error))) => (status_of(&error), error.to_string()),
        Ok(Err(Trouble::Argument(what))) => (S::HOSTBUF_INVALID, what),
        Ok(Err(Trouble::Nothing(why))) => (S::HOSTBUF_NOTHING, why),
        Err(panic) => (S::HOSTBUF_DEFECT, format!("hostbuf panicked: {}", words(&*panic))),
    };
    say(message);
    status
}

/// The most bytes of a message.
const MOST: usize = 4096;

/// Keeps a message for the calling thread: one line, whatever a program's own texts have in them.
pub fn say(mut message: String) {
    if message.len() > MOST {
        let end = (0..=MOST).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push_str("...");
    }
    let line: String = message.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let text = CString::new(line).unwrap_or_default();
    // A thread whose storage is gone has nobody to read it.
    let _ = MESSAGE.try_with(|place| place.replace(text));
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn status_of(error: &Error) -> hostbuf_status {
    match error {
        Error::Invalid { .. } => S::HOSTBUF_INVALID,
        Error::Unsupported { .. } | Error::Memory(_) => S::HOSTBUF_UNSUPPORTED,
        Error::NoSpace { .. } => S::HOSTBUF_NO_SPACE,
        Error::Disagreed { .. } => S::HOSTBUF_DISAGREED,
        Error::Os { .. } => S::HOSTBUF_OS,
        Error::Attach { .. } => S::HOSTBUF_ATTACH,
        Error::Lost { .. } => S::HOSTBUF_LOST,
        Error::Corrupt { .. } => S::HOSTBUF_CORRUPT,
        Error::Full { .. } => S::HOSTBUF_FULL,
        Error::Fill { .. } => S::HOSTBUF_FILL,
        Error::Peer { .. } => S::HOSTBUF_PEER,
        Error::Freeze { .. } => S::HOSTBUF_FREEZE,
        Error::Replicate { .. } => S::HOSTBUF_REPLICATE,
        Error::Collective { .. } => S::HOSTBUF_COLLECTIVE,
        Error::Register(register::Error::Registration { .. }) => S::HOSTBUF_REGISTRATION,
        Error::Register(register::Error::Budget { .. }) => S::HOSTBUF_BUDGET,
        Error::Register(register::Error::Limit { .. }) => S::HOSTBUF_LIMIT,
        Error::Register(register::Error::Forked) => S::HOSTBUF_FORKED,
        Error::Elsewhere { .. } => S::HOSTBUF_ELSEWHERE,
        _ => S::HOSTBUF_DEFECT,
    }
}

/// The message of the calling thread's last call that did not end with `HOSTBUF_OK`, or that says
/// something although it did (as `hostbuf_device_probe` and `hostbuf_freeze` tell): one line for
/// people, with what was asked, what was there, and what to do. Empty before the first. It stays
/// until the thread's next such call; never null.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_message() -> *const c_char {
    const NONE: &CStr = c"";
    MESSAGE.try_with(|text| text.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}

/// The name of a status, as it is written here; `"?"` for a number that is none. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 22] = [
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
    ];
    usize::try_from(status).ok().and_then(|at| NAMES.get(at)).unwrap_or(&c"?").as_ptr()
}

/// Brings the ranks of a group to one answer about what each was given: all go on, or none does.
pub fn together<T>(group: &dyn Collective, given: Outcome<T>) -> Outcome<T> {
    let given = given.map_err(|trouble| match trouble {
        Trouble::Failed(error) => error,
        Trouble::Argument(what) | Trouble::Nothing(what) => Error::Invalid { what },
    });
    Ok(all_or_none(group, given)?)
}

/// Looks at what a pointer of the caller's points to.
///
/// # Safety
/// Null, or valid for as long as the reference is used.
pub unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Outcome<&'a T> {
    // SAFETY: by the contract of this.
    unsafe { pointer.as_ref() }.ok_or_else(|| argument(format!("{name} is null")))
}

/// Where an answer is to go.
///
/// # Safety
/// Null, or valid for writing one value.
pub unsafe fn place<'a, T>(pointer: *mut T, name: &str) -> Outcome<&'a mut T> {
    // SAFETY: by the contract of this.
    unsafe { pointer.as_mut() }.ok_or_else(|| argument(format!("{name} is null")))
}

/// The caller's text.
///
/// # Safety
/// Null, or ends with NUL and stays for as long as it is used.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(argument(format!("{name} is null")));
    }
    // SAFETY: by the contract of this.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| argument(format!("{name} is not UTF-8: {}", text.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use library::{Access, Failure, NoSpace, Span};

    use super::*;

    /// One of each kind.
    fn errors() -> Vec<Error> {
        let text = || String::from("x");
        let span = Span::new(4096, 4096).expect("a span");
        vec![
            Error::Unsupported { what: text(), why: text() },
            Error::NoSpace(NoSpace { host: text(), asked: 2, available: 1, limit: text(), remedy: text() }),
            Error::Disagreed { host: text(), rank: 0, why: text() },
            Error::Invalid { what: text() },
            Error::Os { doing: text(), source: std::io::Error::other("x") },
            library::AttachError::AgentGone { why: text() }.into(),
            Error::Lost { why: text() },
            Error::Corrupt { word: "x", found: 0 },
            Error::Full { asked: 2, left: 1 },
            Error::Fill { why: text() },
            Error::Peer { host: 0, doing: text(), failure: Failure::GaveUp },
            Error::Freeze { why: text() },
            Error::Replicate { host: text(), why: text() },
            Error::Collective { operation: "x", why: text() },
            register::Error::Registration {
                device: text(),
                span,
                access: Access::READ,
                why: text(),
                source: None,
            }
            .into(),
            register::Error::Budget { device: text(), span, regions: (0, 1), bytes: (0, 1), leased: false }
                .into(),
            register::Error::Limit { device: text(), asked: 1, block: 1, registered: 0, limit: 0 }.into(),
            register::Error::Forked.into(),
            Error::Elsewhere { host: text(), rank: 0, class: library::ErrorClass::General, message: text() },
        ]
    }

    #[test]
    fn each_kind_of_error_has_the_status_of_its_name() {
        let mut seen = std::collections::BTreeSet::new();
        for error in errors() {
            let status = status_of(&error);
            // `NoSpace` is HOSTBUF_NO_SPACE.
            let mut wanted = String::from("HOSTBUF");
            for letter in error.kind().chars() {
                if letter.is_uppercase() {
                    wanted.push('_');
                }
                wanted.push(letter.to_ascii_uppercase());
            }
            // SAFETY: a static text.
            let name = unsafe { CStr::from_ptr(hostbuf_status_name(status as i32)) };
            assert_eq!(name.to_str(), Ok(wanted.as_str()));
            assert_eq!(wanted, format!("{status:?}"));
            assert!(seen.insert(wanted));
        }
        // All but OK, NOTHING and DEFECT, which are no errors of the library's.
        assert_eq!(seen.len(), 22 - 3);
    }
}
