//! Attaching to the buffers that the launcher made.

#![allow(unsafe_code, reason = "shares the mapped segment by a raw pointer in a static")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use tracing::info_span;

use crate::agree::election;
use crate::error::{AttachError, Error, Result};
use crate::segment::handle::HostBuffer;
use crate::segment::identity::BufferIdentity;
use crate::segment::mapped_segment::MappedSegment;
use crate::segment::options::DEFAULT_NAME;
use hostbuf_os::file_mapping::is_file_mapped_at;
use hostbuf_os::process_lock::ProcessLock;
use hostbuf_os::session::Session;
use hostbuf_protocol::ballot::Holds;
use hostbuf_protocol::environment::{ENV_ADDRESS, ENV_JOB};
use hostbuf_protocol::message::{AddressWindow, Hello, Message, Role};
use hostbuf_protocol::range::AgreedRange;

/// The segment to which this process has attached: once, for all of its threads, until it ends.
/// (Closing a descriptor of the control page would also release the filler's lock, so there is only
/// one.)
static ATTACHED: AtomicPtr<MappedSegment> = AtomicPtr::new(null_mut());
/// The time within which the agent of this host has to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// The lock of a thread that attaches. A child that is forked meanwhile attaches by itself.
static ATTACHING: ProcessLock = ProcessLock::new();

impl HostBuffer {
    /// Returns whether a launcher has started this process, so that there is a buffer to attach to.
    /// All ranks of a job get the same answer. Use this to decide between attaching and allocating,
    /// not a failure of [`attach`](HostBuffer::attach), which may happen in one rank only.
    #[must_use]
    pub fn is_launched() -> bool {
        std::env::var_os(ENV_JOB).is_some_and(|job| !job.is_empty())
    }

    /// Returns the first buffer that `hostbuf run` or `hostbuf exec` made for this process. It has
    /// been mapped before `main`, unless the program is static. In a static program this call maps
    /// it, at the agreed address.
    ///
    /// # Errors
    /// [`Error::Attach`] if there is no launcher, if its agent has ended, if the job has no
    /// buffers, or if the range is occupied in a static program; [`Error::Corrupt`].
    pub fn attach() -> Result<HostBuffer> {
        let segment = attached()?;
        if segment.identity.buffers.is_empty() {
            let name = DEFAULT_NAME.to_owned();
            return Err(AttachError::UnknownBuffer { name, known: Vec::new() }.into());
        }
        Ok(HostBuffer { segment, index: 0 })
    }

    /// Returns all buffers, in the order of the command line.
    ///
    /// # Errors
    /// As [`attach`](HostBuffer::attach).
    pub fn attach_all() -> Result<Vec<HostBuffer>> {
        let segment = attached()?;
        Ok((0..segment.identity.buffers.len())
            .map(|index| HostBuffer { segment: segment.clone(), index })
            .collect())
    }

    /// Returns the buffer with this name (`--buffer name=...`).
    ///
    /// # Errors
    /// As [`attach`](HostBuffer::attach); [`Error::Attach`] if no buffer has this name.
    pub fn attach_named(name: &str) -> Result<HostBuffer> {
        let segment = attached()?;
        let names: Vec<String> = segment.identity.buffers.iter().map(BufferIdentity::name).collect();
        match names.iter().position(|n| n == name) {
            Some(index) => Ok(HostBuffer { segment, index }),
            None => Err(AttachError::UnknownBuffer { name: name.to_owned(), known: names }.into()),
        }
    }
}

fn attached() -> Result<Arc<MappedSegment>> {
    let known = || {
        let segment = ATTACHED.load(Ordering::Acquire);
        // SAFETY: null, or from into_raw() below; the static keeps its reference.
        (!segment.is_null()).then(|| unsafe {
            Arc::increment_strong_count(segment);
            Arc::from_raw(segment)
        })
    };
    if let Some(segment) = known() {
        return Ok(segment);
    }
    let _attaching = ATTACHING.lock();
    if let Some(segment) = known() {
        return Ok(segment);
    }
    let segment = attach_to(&std::env::var(ENV_JOB).map_err(|_| AttachError::NotLaunched {
        why: format!("{ENV_JOB} is not set: start the program with `hostbuf run` or `hostbuf exec`"),
    })?)?;
    ATTACHED.store(Arc::into_raw(segment.clone()).cast_mut(), Ordering::Release);
    Ok(segment)
}

fn attach_to(name: &str) -> Result<Arc<MappedSegment>> {
    let _span = info_span!("attach").entered();
    let failed = |why: String| Error::from(AttachError::AgentGone { why });
    let hello = Message::Hello { hello: Hello::of(Role::Library), command: b"" };
    // The agent replies at once, or as soon as the ranks agree. The limit covers an agent that is
    // stopped.
    let mut packet = Session::open(name, Some(ANSWER_LIMIT), &hello)
        .and_then(|session| session.first_answer(ANSWER_LIMIT))
        .map_err(AttachError::from)?;
    let descriptors = std::mem::take(&mut packet.descriptors);
    let Ok(Message::Agreed { range, .. }) = packet.message() else {
        return Err(failed("the agent of this host sent an invalid message".into()));
    };
    let [_, control, ..] = &descriptors[..] else {
        return Err(failed("the agent of this host sent no memory".into()));
    };
    match is_mapped(&range, control)? {
        Some(true) => {}
        Some(false) => map(&range, &descriptors)?,
        None => match map(&range, &descriptors) {
            Err(_) if is_published(&range) => {}
            result => result?,
        },
    }
    // SAFETY: mapped by the preloaded object or above, and never unmapped.
    unsafe { MappedSegment::open(&range, descriptors, None) }
}

/// Returns whether the control page is mapped at its agreed address, which means that the preloaded
/// object has mapped the buffers. `None` if `/proc` is not mounted, as in a chroot.
fn is_mapped(range: &AgreedRange<'_>, control: &OwnedFd) -> Result<Option<bool>> {
    let at = (range.address + range.control.offset) as usize;
    is_file_mapped_at(control.as_fd(), at).map_err(Error::os("reading /proc/self/maps"))
}

/// Returns whether the environment contains the address of the first buffer. If that range is
/// occupied then, the preloaded object has mapped it: in a static program that inherits the
/// variable from a shell, the range is free.
fn is_published(range: &AgreedRange<'_>) -> bool {
    let published = std::env::var(ENV_ADDRESS).ok();
    let published = published.and_then(|text| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok());
    let first = range.buffers.iter().next().map(|buffer| range.address + buffer.part.offset);
    published.is_some() && published == first
}

fn map(range: &AgreedRange<'_>, descriptors: &[OwnedFd]) -> Result<()> {
    let mut holds = Holds::new(AddressWindow::Anywhere);
    holds.take(range).map_err(|refusal| AttachError::Occupied {
        why: format!("in this process, {}", election::describe(&refusal, range.length as usize)),
    })?;
    let raw: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    holds.map(range, &raw).map_err(|e| {
        let address = range.address;
        Error::os(format!("mapping the buffer at {address:#x}"))(std::io::Error::from_raw_os_error(e.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_os::{FrameSocket, socket};
    use hostbuf_protocol::failure::{ErrorClass, ErrorRecord};

    #[test]
    fn the_error_of_a_failed_job_keeps_its_contents() {
        let name = format!("hostbuf/failed/{}", std::process::id());
        let agent = socket::listen_on(&name).expect("the name is free");
        let error = ErrorRecord {
            rank: Some(3),
            host: "h1",
            operands: ["2", "1", "the pool", "request less"],
            ..ErrorRecord::new(ErrorClass::NoSpace, "not enough memory on h1")
        };
        let attached = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let client = loop {
                    match socket::accept(agent.as_fd()).expect("a socket that listens") {
                        Some(fd) => break FrameSocket::from_fd(fd).expect("a process of this user"),
                        None => std::thread::yield_now(),
                    }
                };
                client.send(&Message::Fail { prints: false, error }, &[]).unwrap();
                // The connection stays open until the process has attached.
                client
            });
            let attached = attach_to(&name).map(drop);
            sender.join().expect("no panic");
            attached
        });
        let failed = attached.unwrap_err();
        assert_eq!((failed.class(), failed.kind()), (ErrorClass::NoSpace, "JobFailed"));
        assert!(failed.to_string().ends_with(error.line), "{failed}");
        let Error::Attach(AttachError::JobFailed(received)) = &failed else { panic!("{failed:?}") };
        assert_eq!(received.record(), error);
    }
}
