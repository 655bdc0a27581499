//! The wait for the ranks of all hosts.

use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use hostbuf::job::{Collective, Reduce};
use hostbuf::{ErrorClass, JobError};

use super::orders::{Event, ServerHandle, Uncovered};
use super::stop::{Stop, is_ending};
use super::timed_error::TimedError;

/// The interval at which an agent with missing ranks exchanges its state with the other agents.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// The additional time that the agents together wait for missing ranks, so that the server of the
/// host in question can name them first.
const MARGIN: Duration = Duration::from_secs(1);

/// The ranks that have connected to their agents.
pub(super) struct Present {
    /// The number of ranks on this host.
    pub(super) here: usize,
    /// The number of ranks on all hosts.
    pub(super) all: u64,
    /// The number of ranks, on all hosts, that never have the buffer.
    pub(super) without: u64,
    /// The number of ranks, on all hosts, that can attach.
    pub(super) attaching: u64,
    /// The line about this host's ranks that never have the buffer.
    pub(super) notice: Option<String>,
}

/// Waits until the ranks of all hosts have connected. A host on which the engine has placed no rank
/// learns from the other agents that all ranks have connected.
pub(super) fn gather(
    group: &dyn Collective,
    server: &ServerHandle,
    timeout: Option<Duration>,
) -> Result<Present, Stop> {
    server.handles_losses.store(true, Ordering::Relaxed);
    let mut here: Option<(usize, u64)> = None;
    let mut uncovered = Uncovered::default();
    let mut late = None;
    let mut arrivals = (0, Instant::now());
    loop {
        let mut lost: Option<TimedError> = late.take();
        if here.is_none() {
            match server.events.recv_timeout(EXCHANGE_INTERVAL) {
                Ok(Event::Present { ranks, size, uncovered: of_these }) => {
                    here = Some((ranks, size));
                    uncovered = of_these;
                }
                Ok(Event::Lost(error)) => lost = Some(error),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => lost = Some(is_ending().into()),
            }
        } else if group.size() > 1 {
            // A rank of this host may be lost while the agent waits for the other hosts.
            if let Ok(Event::Lost(error)) = server.events.try_recv() {
                lost = Some(error);
            }
        }
        let (ranks, size) = here.unwrap_or_default();
        // If the engine does not provide the size of the job, the job has no other hosts.
        let size = if size == 0 { ranks as u64 } else { size };
        let connected = server.connected.load(Ordering::Relaxed);
        let mut words = [
            ranks as u64,
            size,
            u64::from(here.is_some()),
            u64::from(lost.is_some()),
            connected,
            uncovered.without,
            uncovered.attaching,
        ];
        group.all_reduce(&mut words, Reduce::Sum)?;
        let [present, sizes, knowing, lost_anywhere, connected, without, attaching] = words;
        if let Some(error) = lost {
            return Err(Stop::Here(error));
        }
        if lost_anywhere > 0 {
            return Err(Stop::There);
        }
        // All agents that know the size know the same one.
        let complete = knowing > 0 && present * knowing >= sizes;
        // A group of one has the whole job here (`hostbuf exec` on one of several hosts counts its
        // own ranks).
        if complete || (group.size() == 1 && here.is_some()) {
            return Ok(Present { here: ranks, all: present, without, attaching, notice: uncovered.notice });
        }
        if connected != arrivals.0 {
            arrivals = (connected, Instant::now());
        }
        // A server knows which ranks of its own host are late, so it gets a moment to report them
        // first.
        if let Some(limit) = timeout.filter(|limit| knowing > 0 && arrivals.1.elapsed() > *limit + MARGIN) {
            let why = format!(
                "{connected} of {} ranks have connected to the agents of their hosts, and no further rank has connected within {} s: check why the \
                 engine has not started the others, or raise --start-timeout",
                sizes / knowing,
                limit.as_secs()
            );
            late = Some(JobError::new(ErrorClass::Lost, why).into());
        }
        if here.is_some() {
            std::thread::sleep(EXCHANGE_INTERVAL / 10);
        }
    }
}
