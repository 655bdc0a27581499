//! The errors of this crate.

use std::{fmt, io};

use hostbuf_memory::NoSpace;
pub use hostbuf_os::Bytes;

use crate::memory::{InvalidMemory, Memory};
use crate::span::{Access, InvalidSpan, Span};

/// The result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation that failed, with its operands.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This host or this build does not support the request.
    Unsupported {
        /// The request.
        what: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// The host does not have enough memory.
    NoSpace(NoSpace),
    /// An argument is invalid.
    Invalid {
        /// The argument, its value, and the expected values.
        what: String,
    },
    /// A system call failed.
    Os {
        /// The failed operation, with its operands.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A range cannot be frozen, or it is frozen and a device could write there.
    Freeze {
        /// The reason.
        why: String,
    },
    /// A device has refused to register or deregister memory.
    Registration {
        /// The device.
        device: String,
        /// The memory.
        memory: Memory,
        /// The requested access of the device.
        access: Access,
        /// The reason and the remedy.
        why: String,
        /// The error of the kernel or of the driver.
        source: Option<io::Error>,
    },
    /// A registration cache has no room for the request.
    Budget {
        /// The device.
        device: String,
        /// The requested range.
        span: Span,
        /// The current number of registrations, and the limit.
        registrations: (usize, usize),
        /// The current number of registered bytes, and the limit.
        bytes: (usize, usize),
        /// True if the request would fit with fewer leases, false if it exceeds the whole budget.
        leased: bool,
    },
    /// An allocator of registered memory would have to register more than its limit.
    Limit {
        /// The device.
        device: String,
        /// The requested size, in bytes.
        requested: usize,
        /// The size of the block, in bytes, that the request would take.
        block: usize,
        /// The number of bytes that are registered, or being registered by other threads.
        registered: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A forked child has used registrations that belong to its parent.
    Forked,
    /// Another copy of this library in the process prevents the operation. A Rust program,
    /// libhostbuf.so, the Python module and the registering object are a copy each.
    OtherCopy {
        /// The path of the object that contains the other copy.
        path: String,
        /// The version of the other copy.
        version: String,
        /// The conflict, and the remedy.
        why: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported { what, why } => write!(f, "{what} is not supported here: {why}"),
            Error::NoSpace(no_space) => no_space.fmt(f),
            Error::Invalid { what } => f.write_str(what),
            Error::Os { doing, source } => hostbuf_os::error::describe(f, doing, source),
            Error::Freeze { why } => f.write_str(why),
            Error::Registration { device, memory, access, why, source } => {
                let bytes = Bytes(memory.len() as u64);
                write!(f, "{device}: registering {memory} ({bytes}; {access}): {why}")?;
                source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
            }
            Error::Budget { device, span, registrations, bytes, leased } => {
                let asked = Bytes(span.len() as u64);
                let plural = if *registrations == (1, usize::MAX) { "" } else { "s" };
                let registrations = of(registrations.0, registrations.1, registrations.1);
                let bytes = of(Bytes(bytes.0 as u64), bytes.1, Bytes(bytes.1 as u64));
                write!(
                    f,
                    "{device}: no room in the cache's budget for {span} ({asked}): {registrations} registration{plural} and \
                     {bytes} are taken"
                )?;
                f.write_str(if *leased {
                    "; drop leases, wait until others do, or raise HOSTBUF_CACHE_REGISTRATIONS or HOSTBUF_CACHE_BYTES"
                } else {
                    "; it is larger than the whole budget (HOSTBUF_CACHE_BYTES)"
                })
            }
            Error::Limit { device, requested, block, registered, limit } => {
                let bytes = |n: &usize| Bytes(*n as u64);
                write!(f, "{device}: no room for a block of {}", bytes(requested))?;
                if block != requested {
                    write!(f, " (which takes {})", bytes(block))?;
                }
                let (limit, taken) = (bytes(limit), bytes(registered));
                write!(f, ": this allocator may register {limit} and has registered {taken}; raise its limit")?;
                f.write_str(if *registered > 0 { ", or reuse the sizes of freed blocks" } else { "" })
            }
            Error::OtherCopy { path, version, why } => {
                write!(f, "another copy of hostbuf in this process, {path} (hostbuf {version}), {why}")
            }
            Error::Forked => f.write_str(
                "this process is a forked child, and registrations are not inherited: open the device here, and make a new \
                 cache or allocator",
            ),
        }
    }
}

/// Formats a used amount and its limit, or only the amount if there is no limit.
fn of(taken: impl fmt::Display, most: usize, shown: impl fmt::Display) -> String {
    if most == usize::MAX { taken.to_string() } else { format!("{taken} of {shown}") }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } | Error::Registration { source: Some(source), .. } => Some(source),
            _ => None,
        }
    }
}

impl From<InvalidSpan> for Error {
    fn from(invalid: InvalidSpan) -> Error {
        Error::Invalid { what: invalid.to_string() }
    }
}

impl From<InvalidMemory> for Error {
    fn from(invalid: InvalidMemory) -> Error {
        Error::Invalid { what: invalid.to_string() }
    }
}

impl From<hostbuf_memory::Error> for Error {
    fn from(error: hostbuf_memory::Error) -> Error {
        match error {
            hostbuf_memory::Error::NoSpace(no_space) => Error::NoSpace(no_space),
            hostbuf_memory::Error::Invalid { what } => Error::Invalid { what },
            hostbuf_memory::Error::Os { doing, source } => Error::Os { doing, source },
            hostbuf_memory::Error::Unsupported { what, why } => Error::Unsupported { what, why },
            other => Error::Unsupported { what: "memory for registration".into(), why: other.to_string() },
        }
    }
}

impl Error {
    /// Makes an error from the kernel's error and the description of the operation.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "only devices that have files use it"))]
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        let doing = doing.into();
        move |source| Error::Os { doing, source: source.into() }
    }

    /// Returns whether the device has no room, so that ending another registration may help.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let code = match self {
            Error::Registration { source, .. } => source.as_ref().and_then(io::Error::raw_os_error),
            _ => None,
        };
        matches!(code, Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC))
    }

    /// Returns the variant's name, for logs and for other languages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Unsupported { .. } => "Unsupported",
            Error::NoSpace(_) => "NoSpace",
            Error::Invalid { .. } => "Invalid",
            Error::Os { .. } => "Os",
            Error::Freeze { .. } => "Freeze",
            Error::Registration { .. } => "Registration",
            Error::Budget { .. } => "Budget",
            Error::Limit { .. } => "Limit",
            Error::Forked => "Forked",
            Error::OtherCopy { .. } => "OtherCopy",
        }
    }

    pub(crate) fn not_frozen(why: impl fmt::Display) -> Error {
        Error::Freeze { why: format!("the buffer cannot be frozen: {why}") }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Error {
        Error::Invalid { what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_error_states_the_usage_and_the_limits() {
        let text = |registrations, bytes, leased| {
            let (device, span) = ("mlock".into(), Span::new(0x1000, 1).unwrap());
            Error::Budget { device, span, registrations, bytes, leased }.to_string()
        };
        let both = text((2, 2), (8192, 1 << 20), true);
        assert!(
            both.contains("(1 byte): 2 of 2 registrations and 8 KiB of 1 MiB are taken; drop leases"),
            "{both}"
        );
        let unlimited = text((1, usize::MAX), (4096, usize::MAX), false);
        assert!(unlimited.contains(": 1 registration and 4 KiB are taken; it is larger"), "{unlimited}");
    }
}
