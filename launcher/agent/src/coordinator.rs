//! The phases of an agent, in step with the agents of the other hosts.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hostbuf::agree::RangeRequest;
use hostbuf::job::Collective;
use hostbuf::segment::{ControlPage, Identity, Layout, PublishedSegments, Segments};
use hostbuf::{Error, ErrorClass, FillState, JobError, Phase};
use hostbuf_os::process;

use super::files::{FolderSlot, HostFiles};
use super::gpu_sections::map_gpu_sections;
use super::group::Open;
use super::job_electorate::JobElectorate;
use super::job_memory::JobMemory;
use super::load_status::LoadStatus;
use super::orders::{Event, Order, ServerHandle};
use super::present::{Present, gather};
use super::report::Report;
use super::spec::Spec;
use super::stop::{Stop, event, together};
use super::tensors::LoadedTensors;
use super::thread_error::unstarted_thread;
use super::timed_error::TimedError;
use crate::lookup;

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
    let created = find_program(spec).and_then(|()| create(spec, folder));
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
fn find_program(spec: &Spec) -> Result<(), JobError> {
    let Some(name) = &spec.program else { return Ok(()) };
    let on_this_host = |message| format!("{message} on {}", process::host_name());
    lookup::find(name.as_ref()).map(drop).map_err(|error| error.map_message(on_this_host))
}

/// Checks that this host has the memory for all buffers and files, and creates the memory files of
/// the buffers. The folder of the files is in `folder` then.
///
/// # Errors
/// As [`Segments::create`] and [`HostFiles::find`].
fn create(spec: &Spec, folder: &FolderSlot) -> Result<JobMemory, JobError> {
    let find = |path| HostFiles::find(spec.job, &spec.load, path, &spec.buffers, folder);
    let files = spec.as_files.as_deref().map(find).transpose()?;
    Ok(JobMemory::new(Segments::create(spec.job, &spec.buffers)?, files))
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

/// Runs all phases in which the agents and ranks agree, and exchanges the error if one stops.
fn agree(
    spec: &Spec,
    group: &dyn Collective,
    server: &ServerHandle,
    shared: &SharedState,
    memory: Result<JobMemory, JobError>,
    mut phases: [u64; Phase::COUNT],
) -> Result<Agreed, JobError> {
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
) -> Result<Agreed, Stop> {
    let begun = Instant::now();
    let present = gather(group, server, spec.timeout)?;
    let ranks = present.here;
    phases[Phase::Gather as usize] = micros(begun);

    let begun = Instant::now();
    let mut layout = Layout::of(&spec.buffers);
    let request = RangeRequest::new(layout.length as usize, layout.align as usize);
    let elected = JobElectorate::new(group, server, ranks).elect(request)?;
    layout.address = elected.address;
    phases[Phase::Agree as usize] = micros(begun);

    let begun = Instant::now();
    let mut identity = Identity::new(spec.job);
    identity.rounds = elected.rounds;
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
    let own = (layout.address as usize, (layout.address + layout.length) as usize);
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
    map_gpu_sections(spec, group, server, ranks, &page, own)?;
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
    Ok(Agreed { address, rounds: elected.rounds, present })
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
