//! What can go wrong, told to the person who has to mend it.

use std::{fmt, io};

use crate::span::{Access, Span};

/// The result of every operation here.
pub type Result<T> = std::result::Result<T, Error>;

/// How an operation on another host by RDMA ended that did not succeed. The numbers of verbs stand in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The other side's key does not allow it, or has ended (10).
    RemoteAccess,
    /// The other side did not answer, however often it was asked: it has ended, or the network is broken (12).
    NoAnswer,
    /// An earlier operation of the same connection has failed, and so this one was not tried (5).
    Flushed,
    /// The time is over. The operation may go on.
    Timeout,
    /// The other side would not be connected to.
    Refused,
    /// The other side has closed it.
    Closed,
    /// The other side has ended what both were doing, because of an error that it reports itself.
    GaveUp,
    /// Another status of verbs.
    Status(u32),
}

impl Failure {
    #[cfg(feature = "rdma")]
    pub(crate) fn of_status(status: u32) -> Failure {
        match status {
            5 => Failure::Flushed,
            10 => Failure::RemoteAccess,
            12 => Failure::NoAnswer,
            other => Failure::Status(other),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::RemoteAccess => {
                write!(
                    f,
                    "it does not allow that: its buffer is frozen, or its registration has ended (status 10)"
                )
            }
            Failure::NoAnswer => {
                write!(
                    f,
                    "it does not answer any more: its process has ended, or the network is broken (status 12)"
                )
            }
            Failure::Flushed => {
                write!(f, "not tried, since an earlier operation to it has failed (status 5)")
            }
            Failure::Timeout => write!(f, "not over in time"),
            Failure::Closed => write!(f, "it has closed its end"),
            Failure::GaveUp => write!(f, "it has given up, because of an error that it reports itself"),
            Failure::Refused => write!(f, "it refuses the connection; its log says why"),
            Failure::Status(status) => write!(f, "it has failed with status {status} of verbs"),
        }
    }
}

/// An operation that failed, with its operands.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This host, or this build, cannot do it.
    Unsupported {
        /// What was asked.
        what: String,
        /// Why it cannot be had here, and what to do.
        why: String,
    },
    /// Not enough memory, found out before anything was touched (or by a child that was made to find out).
    NoSpace {
        /// The host that is short.
        host: String,
        /// Bytes asked.
        asked: u64,
        /// Bytes available.
        available: u64,
        /// Whose limit it is, and its size.
        limit: String,
        /// What to do.
        remedy: String,
    },
    /// The participants found no common address, or asked for different things.
    Disagreed {
        /// The host that differs.
        host: String,
        /// The rank that differs.
        rank: usize,
        /// How: the mapping that stands in the way, or the two requests.
        why: String,
    },
    /// An argument makes no sense.
    Invalid {
        /// Which, its value, and what would be right.
        what: String,
    },
    /// The kernel refused.
    Os {
        /// What was being done, with operands.
        doing: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is nothing to attach to, or it is not what was expected.
    Attach {
        /// Why, and what to do.
        why: String,
    },
    /// A rank ended, or could not go on, before all ranks had the buffer.
    Lost {
        /// Which rank, on which host, and why.
        why: String,
    },
    /// A word of the control page does not make sense. Nothing was changed.
    Corrupt {
        /// Which word.
        word: &'static str,
        /// What was found there.
        found: u64,
    },
    /// The arena has no room.
    Full {
        /// Bytes asked.
        asked: u64,
        /// Bytes left.
        left: u64,
    },
    /// Filling did not end well in this process.
    Fill {
        /// What happened.
        why: String,
    },
    /// An operation on another host by RDMA has failed.
    Peer {
        /// Which host, counted from 0 in the order of the fabric.
        host: usize,
        /// What was being done.
        doing: String,
        /// How it ended.
        failure: Failure,
    },
    /// The buffer could not be frozen, or it is frozen and would be written to.
    Freeze {
        /// Which of both, and what stood in the way.
        why: String,
    },
    /// What arrived is not what was sent.
    Replicate {
        /// The host where it differs.
        host: String,
        /// How.
        why: String,
    },
    /// A collective operation failed.
    Collective {
        /// Which.
        operation: &'static str,
        /// Why.
        why: String,
    },
    /// A device refused to register memory, or to end a registration.
    Registration {
        /// The device.
        device: String,
        /// The range.
        span: Span,
        /// What the device should be allowed to do with it.
        access: Access,
        /// What was refused, and what to do.
        why: String,
        /// What the kernel or the driver said.
        source: Option<io::Error>,
    },
    /// A registration cache has no room for what was asked.
    Budget {
        /// The device.
        device: String,
        /// The range that was asked for.
        span: Span,
        /// Registrations now, and the most there may be.
        regions: (usize, usize),
        /// Bytes registered now, and the most there may be.
        bytes: (usize, usize),
        /// Whether it would fit if there were fewer leases; otherwise it is above the whole budget.
        leased: bool,
    },
    /// An allocator of registered memory would have to register more than its limit.
    Limit {
        /// The device.
        device: String,
        /// Bytes asked.
        asked: usize,
        /// Bytes of the block that it would be.
        block: usize,
        /// Bytes registered now, or by other threads at this moment.
        registered: usize,
        /// The most that may be.
        limit: usize,
    },
    /// A forked child asked for what belongs to its parent.
    Forked,
    /// Another rank of the same collective call failed; all ranks return this.
    Elsewhere {
        /// The host of the rank that failed.
        host: String,
        /// The rank that failed.
        rank: usize,
        /// Its error, as it would have printed it.
        message: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported { what, why } => write!(f, "{what} is not supported here: {why}"),
            Error::NoSpace { host, asked, available, limit, remedy } => write!(
                f,
                "not enough memory on {host}: {} asked, {} available ({asked} and {available} bytes), limited by {limit}: {remedy}",
                Bytes(*asked),
                Bytes(*available)
            ),
            Error::Disagreed { host, rank, why } => {
                write!(f, "no agreement among the ranks: rank {rank} on {host}: {why}")
            }
            Error::Invalid { what } => write!(f, "{what}"),
            Error::Os { doing, source } => {
                write!(f, "{doing}: {source}")?;
                f.write_str(match source.raw_os_error() {
                    Some(libc::EMFILE) => ". Raise `ulimit -n`",
                    _ => "",
                })
            }
            Error::Attach { why } => write!(f, "cannot attach to a host buffer: {why}"),
            Error::Lost { why } => f.write_str(why),
            Error::Corrupt { word, found } => {
                write!(
                    f,
                    "the control page is damaged: {word} reads {found:#x}. Somebody wrote over it; the job must be started again"
                )
            }
            Error::Full { asked, left } => write!(
                f,
                "the arena is full: {} asked, {} left. Ask for a larger buffer (--size, or the size that allocate was given)",
                Bytes(*asked),
                Bytes(*left)
            ),
            Error::Fill { why } => write!(f, "filling the buffer failed: {why}"),
            Error::Peer { host, doing, failure } => write!(f, "{doing}, host {host}: {failure}"),
            Error::Freeze { why } => f.write_str(why),
            Error::Replicate { host, why } => write!(f, "replication to {host} failed: {why}"),
            Error::Collective { operation, why } => {
                write!(f, "collective operation {operation} failed: {why}")
            }
            Error::Elsewhere { host, rank, message } => write!(f, "rank {rank} on {host}: {message}"),
            Error::Registration { device, span, access, why, source } => {
                write!(f, "{device}: registering {span} ({}; {access}): {why}", Bytes(span.len() as u64))?;
                source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
            }
            Error::Budget { device, span, regions, bytes, leased } => {
                let asked = Bytes(span.len() as u64);
                let registrations = of(regions.0, regions.1, regions.1);
                let plural = if *regions == (1, usize::MAX) { "" } else { "s" };
                let bytes = of(Bytes(bytes.0 as u64), bytes.1, Bytes(bytes.1 as u64));
                write!(
                    f,
                    "{device}: no room in the cache's budget for {span} ({asked}): {registrations} registration{plural} and \
                     {bytes} are taken"
                )?;
                f.write_str(if *leased {
                    "; drop leases, wait until others do, or raise HOSTBUF_CACHE_REGIONS or HOSTBUF_CACHE_BYTES"
                } else {
                    "; it is larger than the whole budget (HOSTBUF_CACHE_BYTES)"
                })
            }
            Error::Limit { device, asked, block, registered, limit } => {
                let bytes = |n: &usize| Bytes(*n as u64);
                write!(f, "{device}: no room for a block of {}", bytes(asked))?;
                if block != asked {
                    write!(f, " (which takes {})", bytes(block))?;
                }
                let (limit, taken) = (bytes(limit), bytes(registered));
                write!(f, ": this allocator may register {limit} and has registered {taken}; make it with a higher limit")?;
                f.write_str(if *registered > 0 { ", or take blocks of sizes that were freed" } else { "" })
            }
            Error::Forked => f.write_str(
                "this process was forked from the one that has the registrations, and they do not go through fork: open the \
                 device, and make a cache or an allocator, anew here",
            ),
        }
    }
}

/// What is taken of the most there may be, as they are shown; without a most where there is no limit.
fn of(taken: impl fmt::Display, most: usize, shown: impl fmt::Display) -> String {
    if most == usize::MAX { taken.to_string() } else { format!("{taken} of {shown}") }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } => Some(source),
            Error::Registration { source: Some(source), .. } => Some(source),
            _ => None,
        }
    }
}

impl Error {
    /// Turns the kernel's refusal into an error that says what was being done.
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        let doing = doing.into();
        move |source| Error::Os { doing, source: source.into() }
    }

    /// Whether a device had no room: another registration that ends may help.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let code = match self {
            Error::Registration { source, .. } => source.as_ref().and_then(io::Error::raw_os_error),
            _ => None,
        };
        matches!(code, Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC))
    }

    /// The variant's name: for logs, and for languages that have other kinds of errors.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Unsupported { .. } => "Unsupported",
            Error::NoSpace { .. } => "NoSpace",
            Error::Disagreed { .. } => "Disagreed",
            Error::Invalid { .. } => "Invalid",
            Error::Os { .. } => "Os",
            Error::Attach { .. } => "Attach",
            Error::Lost { .. } => "Lost",
            Error::Corrupt { .. } => "Corrupt",
            Error::Full { .. } => "Full",
            Error::Fill { .. } => "Fill",
            Error::Peer { .. } => "Peer",
            Error::Freeze { .. } => "Freeze",
            Error::Replicate { .. } => "Replicate",
            Error::Collective { .. } => "Collective",
            Error::Registration { .. } => "Registration",
            Error::Budget { .. } => "Budget",
            Error::Limit { .. } => "Limit",
            Error::Forked => "Forked",
            Error::Elsewhere { .. } => "Elsewhere",
        }
    }

    pub(crate) fn not_frozen(why: impl fmt::Display) -> Error {
        Error::Freeze { why: format!("the buffer cannot be frozen: {why}") }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Error {
        Error::Invalid { what: what.into() }
    }
}

/// A number of bytes for people: `2 GiB`, `1.5 MiB`, `17 bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match UNITS.iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) if self.0.trailing_zeros() >= *shift => {
                write!(f, "{} {unit}", self.0 >> shift)
            }
            Some((unit, shift)) => write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None if self.0 == 1 => f.write_str("1 byte"),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl std::str::FromStr for Bytes {
    type Err = String;

    /// `4096`, `64k`, `512M`, `2G`, `1.5GiB`, `3T`: binary units, upper or lower case.
    fn from_str(text: &str) -> std::result::Result<Bytes, String> {
        let wrong = || format!("\"{text}\" is not a size; write for example 4096, 64K, 512M, 2G or 1.5T");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return Err(wrong()),
        };
        let too_large = || format!("\"{text}\" is more than any address space has");
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(Bytes).ok_or_else(too_large);
        }
        let value = number.parse::<f64>().map_err(|_| wrong())? * (1u64 << shift) as f64;
        if value < 1.8e19 { Ok(Bytes(value as u64)) } else { Err(too_large()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_says_what_is_taken_and_of_what() {
        let text = |regions, bytes, leased| {
            let (device, span) = ("mlock".into(), Span::new(0x1000, 1).unwrap());
            Error::Budget { device, span, regions, bytes, leased }.to_string()
        };
        let both = text((2, 2), (8192, 1 << 20), true);
        assert!(
            both.contains("(1 byte): 2 of 2 registrations and 8 KiB of 1 MiB are taken; drop leases"),
            "{both}"
        );
        let unlimited = text((1, usize::MAX), (4096, usize::MAX), false);
        assert!(unlimited.contains(": 1 registration and 4 KiB are taken; it is larger"), "{unlimited}");
    }

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in
            [("4096", 4096), ("64k", 65536), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("3 TB", 3 << 40)]
        {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "G", "-1", "2X", "1e9", "99999999T", "2.2.2G"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Bytes(2 << 30).to_string(), "2 GiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Bytes(17).to_string(), "17 bytes");
        assert_eq!(Bytes(1).to_string(), "1 byte");
    }
}
