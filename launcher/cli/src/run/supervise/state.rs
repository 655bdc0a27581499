//! The state of a job that is supervised.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use hostbuf::ErrorClass;
use hostbuf_agent::first_failure::FirstFailure;
use nix::sys::signal::Signal;

use super::super::death::FirstDeath;
use super::super::lines::Lines;
use super::super::plan::RequestedSize;
use super::super::progress::Progress;
use super::super::signals::Signals;
use super::stopped_process::StoppedProcess;
use crate::engines::{LaunchCommand, LaunchPlan, is_in_allocation};

/// The verbosity of the launcher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verbosity {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

/// The supervision of one job: its processes, and all that is known of them.
pub(super) struct Launcher<'a> {
    pub(super) command: &'a LaunchCommand,
    pub(super) verbosity: Verbosity,
    pub(super) signals: &'a Signals,
    pub(super) agents: Option<Child>,
    /// The children that this process had before the job.
    pub(super) foreign: Vec<u32>,
    pub(super) agent_lines: Lines,
    pub(super) agent_noise: Lines,
    /// True if the error of the job refers to the engine's own lines.
    pub(super) shows_engine: bool,
    pub(super) ranks: Vec<Child>,
    pub(super) ready: usize,
    pub(super) expected: Option<usize>,
    pub(super) agreed: bool,
    /// The reason why the job cannot have its buffer.
    pub(super) failure: FirstFailure,
    /// The result of the program's job: that of the first process that failed, else success.
    pub(super) status: Option<ExitStatus>,
    /// The time at which the program's job was asked to end, and whether it was killed.
    pub(super) stopping: Option<(Instant, bool)>,
    /// The time at which the engine reported that a host cannot be reached, if it does not end by
    /// itself then.
    pub(super) unreachable: Option<Instant>,
    /// The time since which the program's job is about to end by itself.
    pub(super) failing: Option<Instant>,
    /// The time since which none of the program's processes is left.
    pub(super) over: Option<Instant>,
    /// The process of each rank that this launcher started itself.
    pub(super) spawned: Vec<u32>,
    /// The rank that a signal ended first, if this launcher has started the ranks.
    pub(super) first: Option<FirstDeath>,
    /// The ranks that had begun to end when the first failure was seen, if this launcher has
    /// started the ranks.
    pub(super) ending: Vec<u32>,
    /// The class of the error with which a rank exited before all ranks had the buffer, if this
    /// launcher has started it.
    pub(super) class_of_rank: Option<ErrorClass>,
    /// The signal that ended the job before all ranks had the buffer.
    pub(super) ended_by: Option<Signal>,
    /// The last signal that was to end the job.
    pub(super) asked_to_end: Option<Signal>,
    /// The time limit of the start.
    pub(super) start_limit: Option<Duration>,
    /// The time at which the launcher has started the job.
    pub(super) started_at: Instant,
    /// True inside an allocation.
    pub(super) is_allocated: bool,
    /// The time of the last check for stopped agents.
    pub(super) checked_at: Option<Instant>,
    /// A process of the agents' job that is stopped.
    pub(super) stopped_process: Option<StoppedProcess>,
    /// The result of the agents' job.
    pub(super) agents_status: Option<ExitStatus>,
    pub(super) progress: Progress,
    pub(super) size: RequestedSize,
}

impl<'a> Launcher<'a> {
    pub(super) fn new(
        command: &'a LaunchCommand,
        verbosity: Verbosity,
        signals: &'a Signals,
        plan: &LaunchPlan,
        size: RequestedSize,
        start_limit: Option<Duration>,
    ) -> Launcher<'a> {
        Launcher {
            command,
            verbosity,
            signals,
            agents: None,
            foreign: Vec::new(),
            agent_lines: Lines::default(),
            agent_noise: Lines::default(),
            shows_engine: false,
            ranks: Vec::new(),
            ready: 0,
            expected: plan.agent_count,
            agreed: false,
            failure: FirstFailure::default(),
            status: None,
            stopping: None,
            failing: None,
            unreachable: None,
            over: None,
            spawned: Vec::new(),
            first: None,
            ending: Vec::new(),
            class_of_rank: None,
            ended_by: None,
            asked_to_end: None,
            start_limit,
            started_at: Instant::now(),
            is_allocated: is_in_allocation(),
            checked_at: None,
            stopped_process: None,
            agents_status: None,
            progress: Progress::new(verbosity.quiet),
            size,
        }
    }
}
