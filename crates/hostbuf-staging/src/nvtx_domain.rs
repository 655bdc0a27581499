//! The domain of hostbuf in NVTX.
//!
//! The profiler gets the fixed names once. A range with such a name takes no lock and allocates
//! nothing; without a profiler it is a few comparisons.

use std::ffi::CString;
use std::sync::OnceLock;

use nvtx::domain::{EventAttributes, LocalRange, Message, Range, RegisteredString};
use nvtx::{Domain, Payload};

use crate::range_name::RangeName;

/// The fixed names, in the order of [`RangeName`].
const NAMES: [&str; 6] =
    ["read piece", "write piece", "copy to device", "copy to host", "wait for slot", "wait for device"];

fn domain() -> &'static Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    DOMAIN.get_or_init(|| Domain::new(c"hostbuf"))
}

/// Returns the attributes of a range with a fixed name.
fn attributes(name: RangeName, bytes: Option<u64>) -> EventAttributes<'static> {
    static REGISTERED: OnceLock<[RegisteredString<'static>; NAMES.len()]> = OnceLock::new();
    let register = || NAMES.map(|name| domain().register_string(c_string(name.to_owned())));
    let registered = REGISTERED.get_or_init(register)[name as usize];
    let (message, payload) = (Some(Message::Registered(registered)), bytes.map(Payload::Uint64));
    EventAttributes { category: None, color: None, message, payload }
}

/// Returns the attributes of a range with a name of its own, which the profiler does not keep.
fn named_attributes(name: String, bytes: Option<u64>) -> EventAttributes<'static> {
    let (message, payload) = (Some(Message::Ascii(c_string(name))), bytes.map(Payload::Uint64));
    EventAttributes { category: None, color: None, message, payload }
}

/// Returns the text without bytes of zero.
fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

pub(crate) fn thread_range(name: RangeName, bytes: Option<u64>) -> LocalRange<'static> {
    domain().local_range(attributes(name, bytes))
}

pub(crate) fn named_thread_range(name: String) -> LocalRange<'static> {
    domain().local_range(named_attributes(name, None))
}

pub(crate) fn range(name: RangeName, bytes: u64) -> Range<'static> {
    domain().range(attributes(name, Some(bytes)))
}

pub(crate) fn named_range(name: String, bytes: u64) -> Range<'static> {
    domain().range(named_attributes(name, Some(bytes)))
}
