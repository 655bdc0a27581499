//! The description of a process that cannot have the agreed range.

use hostbuf_protocol::ballot::Refusal;
use hostbuf_protocol::range::AgreedRange;
use hostbuf_raw::syscall::{self as raw, Errno};

use crate::text::Line;

/// Describes why this process cannot have the agreed range.
pub(crate) fn describe(refusal: &Refusal, range: &AgreedRange<'_>) -> Line {
    let (start, end) = refusal.mapping;
    let line = Line::new(format_args!(
        "hostbuf: process {} cannot have the job's buffer at {:#x} ({} bytes): ",
        raw::pid(),
        range.address,
        range.length
    ));
    if start == 0 && refusal.errno == Errno::NOMEM {
        line.and(b"the address space is limited (`ulimit -v`)")
    } else if start == 0 {
        line.and(Line::new(format_args!("the range is refused, error {}", refusal.errno.0)).bytes())
    } else {
        let path = if refusal.path().is_empty() { b"an anonymous mapping" } else { refusal.path() };
        line.and(path).and(Line::new(format_args!(" occupies {start:#x}-{end:#x}")).bytes())
    }
}
