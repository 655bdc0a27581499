//! The phases of an agent, in step with the agents of the other hosts.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hostbuf::agree;
use hostbuf::agree::{Electorate, RangeRequest, elect};
use hostbuf::job::{Collective, Reduce};
use hostbuf::segment::{ControlPage, Identity, Layout, PublishedSegments, Segments};
use hostbuf::{Error, ErrorClass, FillState, JobError, Phase, Result};
use hostbuf_os::process;
use hostbuf_protocol::candidates::Ballot;

use super::files::FolderSlot;
use super::group::Open;
use super::job_memory::JobMemory;
use super::load_status::LoadStatus;
use super::orders::{Answer, Event, Order, Question, ServerHandle, Uncovered};
use super::report::Report;
use super::spec::Spec;
use super::tensors::LoadedTensors;
use super::thread_error::unstarted_thread;
use super::timed_error::TimedError;
use crate::lookup;

/// The interval at which an agent with missing ranks exchanges its state with the other agents.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// The additional time that the agents together wait for missing ranks, so that the server of the
/// host in question can name them first.
const MARGIN: Duration = Duration::from_secs(1);
/// The interval between progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The state that the coordinator shares with the main thread of the agent.
pub(super) struct SharedState {
    /// The time at which the engine begins to end.
    pub(super) ending: Arc<OnceLock<Instant>>,
    /// The folder of the loaded files.
    pub(super) folder: Arc<FolderSlot>,
    /// The state of the loaded files.
    pub(super) loads: Arc<LoadStatus>,
}

/// Starts the coordinator in a thread of its own.
///
/// # Errors
/// The reason why the thread cannot be started.
pub(super) fn start(
    spec: Spec,
    open: Open,
    server: ServerHandle,
    shared: SharedState,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().spawn(move || run(&spec, open, &server, &shared))
}

/// Runs [`coordinate`], and fails the job if that panics: the ranks would wait for ever for a
/// coordinator that has ended.
fn run(spec: &Spec, open: Open, server: &ServerHandle, shared: &SharedState) {
    if catch_unwind(AssertUnwindSafe(|| coordinate(spec, open, server, shared))).is_err() {
        let message = format!("the agent on {} panicked; its message is above", process::host_name());
        let error = JobError::new(ErrorClass::Defect, message).with_host(process::host_name());
        Report::Failed(error.clone()).print();
        server.order(Order::Fail(error));
    }
}

/// Goes through all phases; afterwards only the server works. The engine has ended when this
/// function returns, and begins to end when `ending` is set.
fn coordinate(spec: &Spec, open: Open, server: &ServerHandle, shared: &SharedState) {
    let SharedState { ending, folder, .. } = shared;
    let begun = Instant::now();
    let mut phases = [0; Phase::COUNT];
    // This host is checked before the engine starts, so that all hosts report their errors
    // together.
    let created = find_program(spec).and_then(|()| JobMemory::create(spec, folder));
    phases[Phase::Create as usize] = micros(begun);
    let has_room = created.is_ok();
    let (memory, opened) = std::thread::scope(|scope| {
        // Allocation overlaps with the start of the engine and of the ranks.
        let populating = std::thread::Builder::new()
            .spawn_scoped(scope, || created.and_then(|memory| memory.populate(spec)));
        let starting = Instant::now();
        let opened = open();
        phases[Phase::Engine as usize] = micros(starting);
        if let (Ok((group, _)), true) = (&opened, spec.reports && has_room) {
            Report::Ready { host: process::host_name(), agents: group.size() }.print();
        }
        let memory = match populating {
            Ok(thread) => {
                let panicked = || Error::Fill { why: "allocating the pages panicked".into() };
                thread.join().unwrap_or_else(|_| Err(panicked().into()))
            }
            Err(error) => Err(unstarted_thread(error).into()),
        };
        (memory, opened)
    });
    let (group, engine) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let error = JobError::from(error).with_host(process::host_name());
            Report::Failed(error.clone()).print();
            return server.order(Order::Fail(error));
        }
    };
    let memory = memory.map(|(memory, took)| {
        phases[Phase::Populate as usize] = took;
        memory
    });
    match agree(spec, &*group, server, shared, memory, phases) {
        Ok(agreed) => {
            if group.rank() == 0 && spec.reports {
                let Agreed { address, rounds, present: Present { all, without, attaching, .. } } = agreed;
                let address = if spec.buffers.is_empty() { 0 } else { address };
                let microseconds = micros(begun);
                Report::Agreed { address, rounds, microseconds, ranks: all, without, attaching }.print();
            }
        }
        Err(error) => {
            if group.rank() == 0 && spec.reports {
                Report::Failed(error.clone()).print();
            }
            server.order(Order::Fail(error));
        }
    }
    ending.get_or_init(Instant::now);
    drop(group);
    drop::<Box<dyn Any>>(engine);
}

/// Looks for the ranks' program on this host: an engine reports less about a missing program, and
/// some engines crash.
fn find_program(spec: &Spec) -> std::result::Result<(), JobError> {
    let Some(name) = &spec.program else { return Ok(()) };
    let on_this_host = |message| format!("{message} on {}", process::host_name());
    lookup::find(name.as_ref()).map(drop).map_err(|error| error.map_message(on_this_host))
}

/// Returns the number of microseconds since an instant.
fn micros(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

/// The outcome of all phases.
struct Agreed {
    address: u64,
    rounds: u32,
    present: Present,
}

/// The place where the phases stopped.
enum Stop {
    /// This agent, and the others do not know the error yet.
    Here(TimedError),
    /// Another agent, which will report its error.
    There,
    /// All agents, with the same error.
    Everywhere(JobError),
}

impl From<Error> for Stop {
    /// Returns the stop because of an error of a collective operation, which all agents have.
    fn from(error: Error) -> Stop {
        Stop::Everywhere(error.into())
    }
}

/// Runs all phases in which the agents and ranks agree, and exchanges the error if one stops.
fn agree(
    spec: &Spec,
    group: &dyn Collective,
    server: &ServerHandle,
    shared: &SharedState,
    memory: std::result::Result<JobMemory, JobError>,
    mut phases: [u64; Phase::COUNT],
) -> std::result::Result<Agreed, JobError> {
    let SharedState { folder, loads, .. } = shared;
    let memory = JobError::all_or_first(group, memory)?;
    let begun = Instant::now();
    let segments = memory.load(spec, group, folder, loads)?;
    let tensors = LoadedTensors::load(spec, group, &segments, loads)?;
    phases[Phase::Populate as usize] += micros(begun);
    let stop = match steps(spec, group, server, segments, tensors, phases) {
        Ok(outcome) => return Ok(outcome),
        Err(stop) => stop,
    };
    let own = match stop {
        Stop::Everywhere(error) => return Err(error),
        Stop::Here(error) => Some(error),
        // This host may have lost a rank before the other one.
        Stop::There => server.events.try_iter().find_map(|event| match event {
            Event::Lost(error) => Some(error),
            _ => None,
        }),
    };
    Err(TimedError::first(group, own))
}

/// Runs the phases one after another until one stops.
fn steps(
    spec: &Spec,
    group: &dyn Collective,
    server: &ServerHandle,
    segments: Segments,
    tensors: Option<LoadedTensors>,
    mut phases: [u64; Phase::COUNT],
) -> std::result::Result<Agreed, Stop> {
    let begun = Instant::now();
    let present = gather(group, server, spec.timeout)?;
    let ranks = present.here;
    phases[Phase::Gather as usize] = micros(begun);

    let begun = Instant::now();
    let mut layout = Layout::of(&spec.buffers);
    let mut electorate = JobElectorate { group, server, ranks, refusal: None, stop: None };
    let elected =
        elect(&mut electorate, RangeRequest { length: layout.length as usize, align: layout.align as usize });
    let outcome = elected.map_err(|error| electorate.stop.take().unwrap_or_else(|| error.into()))?;
    let Some(address) = outcome.address else {
        return Err(agree::disagreement(group, electorate.refusal).into());
    };
    layout.address = address as u64;
    phases[Phase::Agree as usize] = micros(begun);

    let begun = Instant::now();
    let mut identity = Identity::new(spec.job);
    identity.rounds = outcome.rounds;
    if spec.reports {
        // Agents of `hostbuf exec` do not know each other.
        (identity.host, identity.hosts) = (group.rank() as u32, group.size() as u32);
    }
    let PublishedSegments { page, descriptors } =
        together(group, segments.publish(identity, &layout, phases))?;
    if let Some(tensors) = tensors {
        tensors.publish(&page);
    }
    let (address, buffers) = (layout.address, spec.buffers.iter().map(|b| b.name.clone()).collect());
    server.order(Order::Serve(Box::new(layout), Arc::new(descriptors)));
    let mapped = if ranks == 0 {
        Ok(())
    } else {
        event(server).and_then(|event| match event {
            Event::Mapped => Ok(()),
            _ => Err(JobError::new(ErrorClass::Lost, "the ranks sent an unexpected answer").into()),
        })
    };
    together(group, mapped)?;
    phases[Phase::Map as usize] = micros(begun);
    page.control().set_phases(phases);
    if let (Some(message), true) = (&present.notice, spec.reports) {
        Report::Uncovered { message: message.clone() }.print();
    }
    server.order(Order::Go);
    // Once the launcher has the report, no rank of this host depends on this agent. Ranks that have
    // ended meanwhile are no failure of the start.
    while !matches!(server.events.recv(), Ok(Event::Released) | Err(_)) {}
    if spec.reports {
        // The thread ends with the process. Without it there is no progress report.
        let _ = std::thread::Builder::new().spawn(move || watch(&page, buffers));
    }
    Ok(Agreed { address, rounds: outcome.rounds, present })
}

/// Reports the progress of filling the buffers of this host, which have these names, to the
/// launcher.
fn watch(page: &ControlPage, buffers: Vec<String>) {
    let control = page.control();
    let host = process::host_name();
    let mut reported = vec![None; buffers.len()];
    loop {
        std::thread::sleep(REPORT_INTERVAL);
        for (i, (reported, buffer)) in reported.iter_mut().zip(&buffers).enumerate() {
            // The users of the buffer report a damaged word.
            let (Ok(state), Ok(done)) = (control.fill(i), control.high_water(i)) else { continue };
            let filling = state == FillState::Filling;
            if *reported != filling.then_some(done) && (filling || reported.is_some()) {
                let buffer = buffer.clone();
                Report::Filling { host: host.clone(), buffer, done, ended: !filling }.print();
            }
            *reported = filling.then_some(done);
        }
    }
}

/// Returns the result of this agent if all agents have succeeded. Collective.
fn together<T, E: Into<TimedError>>(
    group: &dyn Collective,
    result: std::result::Result<T, E>,
) -> std::result::Result<T, Stop> {
    let mut well = [u64::from(result.is_ok())];
    group.all_reduce(&mut well, Reduce::Min)?;
    match result {
        Err(error) => Err(Stop::Here(error.into())),
        Ok(_) if well[0] == 0 => Err(Stop::There),
        Ok(value) => Ok(value),
    }
}

/// Returns the server's next event; the loss of a rank is an error.
fn event(server: &ServerHandle) -> std::result::Result<Event, TimedError> {
    match server.events.recv() {
        Ok(Event::Lost(error)) => Err(error),
        Ok(event) => Ok(event),
        Err(_) => Err(is_ending().into()),
    }
}

/// Returns the error of an agent whose server has ended.
fn is_ending() -> JobError {
    JobError::new(ErrorClass::Attach, "the agent is ending")
}

/// The ranks that have connected to their agents.
struct Present {
    /// The number of ranks on this host.
    here: usize,
    /// The number of ranks on all hosts.
    all: u64,
    /// The number of ranks, on all hosts, that never have the buffer.
    without: u64,
    /// The number of ranks, on all hosts, that can attach.
    attaching: u64,
    /// The line about this host's ranks that never have the buffer.
    notice: Option<String>,
}

/// Waits until the ranks of all hosts have connected. A host on which the engine has placed no rank
/// learns from the other agents that all ranks have connected.
fn gather(
    group: &dyn Collective,
    server: &ServerHandle,
    timeout: Option<Duration>,
) -> std::result::Result<Present, Stop> {
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
                "{connected} of {} ranks have connected to the agents of their hosts, and no other rank within {} s: check why the \
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

/// The ranks of all hosts: those of this host through the server, the others through their agents.
struct JobElectorate<'a> {
    group: &'a dyn Collective,
    server: &'a ServerHandle,
    ranks: usize,
    refusal: Option<(usize, String)>,
    stop: Option<Stop>,
}

impl JobElectorate<'_> {
    /// Asks the ranks of this host.
    fn ask(&mut self, question: Question) -> std::result::Result<Answer, TimedError> {
        if self.ranks == 0 {
            return Ok(Answer { mask: u64::MAX, hole: 0, refusal: None });
        }
        self.server.order(Order::Ask(question));
        match event(self.server)? {
            Event::Answered(answer) => Ok(answer),
            _ => Err(JobError::new(ErrorClass::Attach, "the ranks sent an unexpected answer").into()),
        }
    }

    /// Records where the phases stop, and returns an error for [`elect`].
    fn stopping(&mut self, stop: Stop) -> Error {
        self.stop = Some(stop);
        Error::Collective { operation: "elect", why: "a participant is lost".into() }
    }
}

impl Electorate for JobElectorate<'_> {
    fn vote(&mut self, candidates: &Ballot, length: usize) -> Result<u64> {
        let answer = self.ask(Question::Ballot(*candidates, length));
        let mask = answer.as_ref().map_or(0, |a| a.mask);
        let mut words = [mask, if answer.is_ok() { u64::MAX } else { 0 }];
        self.group.all_reduce(&mut words, Reduce::And)?;
        match answer {
            Err(error) => Err(self.stopping(Stop::Here(error))),
            Ok(_) if words[1] == 0 => Err(self.stopping(Stop::There)),
            Ok(answer) => {
                self.refusal = self.refusal.take().or(answer.refusal);
                Ok(words[0])
            }
        }
    }

    fn hole(&mut self, from: usize, request: RangeRequest) -> Result<Option<usize>> {
        let RangeRequest { length, align } = request;
        let answer = self.ask(Question::Search { length, from, align });
        // A host without ranks has no occupied addresses.
        let hole = answer.as_ref().map_or(0, |a| if self.ranks == 0 { from as u64 } else { a.hole });
        let mut words = [hole, u64::from(answer.is_err())];
        self.group.all_reduce(&mut words, Reduce::Max)?;
        match answer {
            Err(error) => Err(self.stopping(Stop::Here(error))),
            Ok(_) if words[1] == 1 => Err(self.stopping(Stop::There)),
            Ok(_) => Ok((words[0] != u64::MAX).then_some(words[0] as usize)),
        }
    }
}
