//! A rank that uses GPUs: it maps the GPU sections before `main`.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use hostbuf::gpu::{GpuHolds, HostGpus, MappedSections};
use hostbuf::segment::{GpuPiece, gpu_range_length};
use hostbuf::{AttachError, Error, HostBuffer, Result};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::session::{Session, SessionError};
use hostbuf_os::set_once::SetOnce;
use hostbuf_os::{FrameSocket, Packet};
use hostbuf_protocol::environment::{ENV_GPU, ENV_JOB};
use hostbuf_protocol::message::{Hello, Message, Role};

use crate::descriptor_shortage::descriptor_shortage;

/// The time within which the agent of this host has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The time limit of retries while this user has too many descriptors in flight.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between retries.
const CROWDED_RETRY: Duration = Duration::from_millis(10);

/// The sections of this process, and the process that has mapped them. They are never unmapped: the
/// driver ends with the process.
static MAPPED: SetOnce<(ForkGuard, MappedSections)> = SetOnce::new();

/// Returns whether this process itself has mapped the GPU sections.
pub(crate) fn has_mapped_sections() -> bool {
    MAPPED.get().is_some_and(|(process, _)| process.is_current())
}

/// A rank that uses GPUs, with the driver initialised.
pub(crate) struct GpuUser {
    gpus: HostGpus,
    buffers: Vec<HostBuffer>,
    pieces: Vec<GpuPiece>,
    /// The candidates of the vote, until the ranks have agreed.
    holds: Option<GpuHolds>,
    /// The range on which they have agreed, until the sections are mapped.
    range: Option<u64>,
}

impl GpuUser {
    /// Returns the user if this process is a rank that uses GPUs and the job has GPU sections.
    ///
    /// # Errors
    /// The reason why it cannot use GPUs.
    pub(crate) fn find(buffers: &[HostBuffer]) -> Result<Option<GpuUser>> {
        let named = std::env::var(ENV_GPU).is_ok_and(|pid| pid.parse() == Ok(std::process::id()));
        let sections = buffers.iter().flat_map(HostBuffer::gpu_section_pieces);
        let pieces: Vec<GpuPiece> = sections.flatten().cloned().collect();
        if !named || pieces.is_empty() {
            return Ok(None);
        }
        let gpus = HostGpus::find()?;
        // A rank that does not see a GPU reports it before any rank votes.
        pieces.iter().try_for_each(|piece| gpus.gpu(piece.gpu).map(drop))?;
        let holds = Some(GpuHolds::new(gpus.first()));
        Ok(Some(GpuUser { gpus, buffers: buffers.to_vec(), pieces, holds, range: None }))
    }

    /// Returns the number of pieces, each of which has a descriptor.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Handles a message of the agent about the GPU sections.
    ///
    /// # Errors
    /// The reason why this rank cannot map them.
    pub(crate) fn handle(&mut self, packet: &Packet, channel: &FrameSocket) -> Result<()> {
        match packet.message() {
            Ok(Message::GpuRange { address, creates: true }) => {
                let range = self.holds.take().ok_or_else(unexpected)?.keep(address)?;
                let sections = MappedSections::create(&self.gpus, range, &self.pieces)?;
                let descriptors = sections.export()?;
                self.has_mapped(sections)?;
                send(channel, &Message::GpuMemory { address }, &descriptors)
            }
            Ok(Message::GpuRange { address, creates: false }) => {
                self.range = Some(address);
                Ok(())
            }
            Ok(Message::GpuMemory { address }) => {
                let range = self.holds.take().filter(|_| self.range == Some(address));
                let range = range.ok_or_else(unexpected)?.keep(address)?;
                let sections = MappedSections::import(&self.gpus, range, &self.pieces, &packet.descriptors)?;
                self.has_mapped(sections)?;
                send(channel, &Message::GpuMapped, &[])
            }
            Ok(question) => {
                let Some(holds) = &mut self.holds else { return Ok(()) };
                holds.answer(&question, |reply| send(channel, reply, &[]))?.unwrap_or(Ok(()))
            }
            Err(_) => Err(unexpected()),
        }
    }

    /// Maps the sections of a job that runs, in a program that a rank has become.
    ///
    /// # Errors
    /// The reason why this process cannot map them.
    pub(crate) fn map_later(mut self) -> Result<()> {
        let job = std::env::var(ENV_JOB).unwrap_or_default();
        let hello = Message::Hello { hello: Hello::of(Role::GpuUser), command: b"" };
        let answer = Session::open(&job, Some(ANSWER_TIMEOUT), &hello)
            .and_then(|session| session.first_answer(ANSWER_TIMEOUT));
        let packet = answer.map_err(|error| match error {
            SessionError::Connect(source) | SessionError::Io(source)
                if source.raw_os_error() == Some(libc::EMFILE) =>
            {
                descriptor_shortage(self.pieces.len(), source)
            }
            other => AttachError::from(other).into(),
        })?;
        let Ok(Message::GpuMemory { address }) = packet.message() else { return Err(unexpected()) };
        let length = gpu_range_length(&self.pieces) as usize;
        let range = self.holds.take().ok_or_else(unexpected)?.take(address, length)?;
        let descriptors: &[OwnedFd] = &packet.descriptors;
        self.has_mapped(MappedSections::import(&self.gpus, range, &self.pieces, descriptors)?)
    }

    /// Keeps the sections until the process ends. Those that are frozen become read-only.
    fn has_mapped(&mut self, sections: MappedSections) -> Result<()> {
        MAPPED.set((ForkGuard::current(), sections));
        for buffer in &self.buffers {
            for pieces in buffer.gpu_section_pieces() {
                buffer.gpu_section(&pieces[0].section)?.follow_freeze()?;
            }
        }
        Ok(())
    }
}

/// Sends a message to the agent. If the agent has ended, the next receive reports it.
fn send(channel: &FrameSocket, message: &Message<'_>, descriptors: &[OwnedFd]) -> Result<()> {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let begun = Instant::now();
    loop {
        let Err(source) = channel.send(message, &numbers) else { return Ok(()) };
        match source.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => return Ok(()),
            // The kernel counts the descriptors of this user that are in flight, in all jobs.
            Some(libc::ETOOMANYREFS) if begun.elapsed() < CROWDED_TIMEOUT => thread::sleep(CROWDED_RETRY),
            _ => {
                let doing = format!(
                    "sending {} descriptors of GPU sections to the agent (with too many references, this user has too many \
                     descriptors in flight: raise ulimit -n)",
                    descriptors.len()
                );
                return Err(Error::Os { doing, source });
            }
        }
    }
}

/// Returns the error of an agent that sends something else than this rank waits for.
fn unexpected() -> Error {
    Error::Invalid { what: "the agent of this host sent an unexpected message about the GPU sections".into() }
}
