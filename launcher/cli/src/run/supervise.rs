//! The launcher while the job runs: it passes signals on, listens to the agents, and sees to it that both jobs end
//! together.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use hostbuf::{Error, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::death::{FirstDeath, death};
use super::descendants::{self, Patience};
use super::lines::Lines;
use super::plan::RequestedSize;
use super::progress::Progress;
use super::shortage::shortage;
use super::signals::{Received, Signals};
use super::spawn::{Streams, spawn};
use crate::agent::report::{Report, covered};
use crate::engines::{Invocation, LaunchCommand, LaunchPlan};

/// The verbosity of the launcher.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voice {
    pub(super) quiet: bool,
    pub(super) verbose: bool,
}

/// The time that a job gets to end after it was asked to, before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// The time that the ranks' remaining processes get after a successful job: the reader of a pipe (`./app | tee log &`)
/// may still have data to write.
const LINGER: Duration = Duration::from_secs(2);
/// The time that agents get to notice that all their ranks have ended.
const NOTICE: Duration = Duration::from_millis(500);

/// The largest number of an engine's lines that a message quotes: enough for the remedies at their end.
const MOST_SAID: usize = 16;
/// The time that a host may still take to connect after the engine's ssh has reported that it is unreachable.
const REACH: Duration = Duration::from_secs(2);

/// Runs both jobs; returns the exit status of the program's.
///
/// # Errors
/// When a job cannot be started, or the agents say why there is no buffer.
pub(super) fn supervise(
    command: &LaunchCommand,
    plan: LaunchPlan,
    size: RequestedSize,
    voice: Voice,
) -> Result<u8> {
    let signals = Signals::block()?;
    if command.engine.spawns_ranks() {
        descendants::adopt();
    }
    let mut launcher = Launcher::new(command, voice, &signals, &plan, size);
    let mut status = launcher.run(plan.clone());
    launcher.end();
    if status.is_err() && launcher.engine_crashed() {
        tracing::warn!("the engine's own processes crashed while they started; starting them once more");
        launcher = Launcher::new(command, voice, &signals, &plan, size);
        status = launcher.run(plan);
        launcher.end();
    }
    match (status, launcher.unstarted) {
        (Err(error), Some(code)) => {
            complain!("hostbuf run: {error}");
            Ok(code)
        }
        (status, _) => status,
    }
}

struct Launcher<'a> {
    command: &'a LaunchCommand,
    voice: Voice,
    signals: &'a Signals,
    agents: Option<Child>,
    /// The children that this process had before the job.
    foreign: Vec<u32>,
    agent_lines: Lines,
    agent_noise: Lines,
    ranks: Vec<Child>,
    ready: usize,
    expected: Option<usize>,
    agreed: bool,
    /// Why the job cannot have its buffer.
    failure: Option<String>,
    /// The result of the program's job: that of the first process that failed, else success.
    status: Option<ExitStatus>,
    /// Since when the program's job is being ended, and whether it was killed.
    stopping: Option<(Instant, bool)>,
    /// Since when it is known that a host cannot be reached, of an engine that does not end by itself then.
    unreachable: Option<Instant>,
    /// Since when the program's job is about to end by itself.
    failing: Option<Instant>,
    /// Since when none of the program's processes is left.
    over: Option<Instant>,
    /// The process of each rank that this launcher started itself.
    spawned: Vec<u32>,
    /// The rank that ended first by a signal, and how, when this launcher started the ranks.
    first: Option<FirstDeath>,
    /// The exit status of a `hostbuf exec` that found no program to run (126, 127).
    unstarted: Option<u8>,
    /// The signal that ended the job before all ranks had the buffer.
    ended_by: Option<Signal>,
    /// The last signal that was to end the job.
    asked_to_end: Option<Signal>,
    /// The result of the agents' job.
    agents_status: Option<ExitStatus>,
    progress: Progress,
    size: RequestedSize,
}

impl<'a> Launcher<'a> {
    fn new(
        command: &'a LaunchCommand,
        voice: Voice,
        signals: &'a Signals,
        plan: &LaunchPlan,
        size: RequestedSize,
    ) -> Launcher<'a> {
        Launcher {
            command,
            voice,
            signals,
            agents: None,
            foreign: Vec::new(),
            agent_lines: Lines::default(),
            agent_noise: Lines::default(),
            ranks: Vec::new(),
            ready: 0,
            expected: plan.agent_count,
            agreed: false,
            failure: None,
            status: None,
            stopping: None,
            failing: None,
            unreachable: None,
            over: None,
            spawned: Vec::new(),
            first: None,
            unstarted: None,
            ended_by: None,
            asked_to_end: None,
            agents_status: None,
            progress: Progress::new(voice.quiet),
            size,
        }
    }

    /// Returns whether the engine crashed while it started the agents, before any rank was started.
    fn engine_crashed(&self) -> bool {
        self.spawned.is_empty()
            && self.ended_by.is_none()
            && self.agent_noise.seen.iter().any(|line| self.command.engine.reports_crash(line))
    }

    fn run(&mut self, plan: LaunchPlan) -> Result<u8> {
        self.foreign = descendants::children();
        self.note(&plan.agents);
        let mut agents = spawn(&plan.agents, Streams::Piped, self.signals.before())?;
        self.agent_lines = Lines::of(agents.stdout.take().map(OwnedFd::from));
        self.agent_noise = Lines::of(agents.stderr.take().map(OwnedFd::from));
        self.agents = Some(agents);
        let mut waiting = Some(plan.ranks);
        loop {
            if waiting.is_some() && self.expected.is_some_and(|n| self.ready >= n) && self.failure.is_none() {
                let lines = waiting.take().unwrap_or_default();
                self.note(&lines[0]);
                for line in &lines {
                    // As with mpirun, only rank 0 reads.
                    let streams = if self.ranks.is_empty() { Streams::Inherited } else { Streams::NoInput };
                    let child = spawn(line, streams, self.signals.before())?;
                    self.spawned.push(child.id());
                    self.ranks.push(child);
                }
            }
            self.reap()?;
            if let Some(why) = &self.failure {
                if self.ranks.is_empty() {
                    if let Some(signal) = self.ended_by {
                        complain!("hostbuf run: ended by {signal} before all ranks had the buffer");
                        return Ok(128 + signal as u8);
                    }
                    return Err(Error::Lost { why: why.clone() });
                }
            } else if self.agents.is_none() && !self.agreed {
                self.failure = Some(self.agents_died());
                self.stop();
                continue;
            }
            if waiting.is_some() && self.unreachable.is_some_and(|since| since.elapsed() > REACH) {
                // The engine would wait for that host for ever.
                self.failure = Some(self.no_agents());
                continue;
            }
            if waiting.is_none() && self.ranks.is_empty() {
                // All have ended before they had the buffer? Then the agents know why, and say it now.
                let over = *self.over.get_or_insert_with(Instant::now);
                let late = over.elapsed() > NOTICE;
                if late && !self.agreed && self.first.is_some() {
                    // No rank has come to its agent.
                    self.failure = self.lost();
                    continue;
                }
                if late || self.agreed || self.agents.is_none() {
                    self.name_the_dead();
                    self.tell_of_the_engine();
                    return Ok(self.verdict());
                }
            }
            self.escalate();
            self.wait()?;
        }
    }

    /// The program's exit status as a shell has it; a death by signal is passed on as one.
    fn verdict(&self) -> u8 {
        let Some(status) = self.status else { return 0 };
        match (status.code(), status.signal()) {
            (Some(code), _) => code as u8,
            (None, signal) => 128u8.wrapping_add(signal.unwrap_or(0) as u8),
        }
    }

    /// Names the rank that a signal has ended, as mpirun does, unless the user has sent that signal.
    fn name_the_dead(&self) {
        if let Some(first) = &self.first
            && first.status.signal() != self.asked_to_end.map(|signal| signal as i32)
        {
            complain!("hostbuf run: {}", first.text());
        }
    }

    /// Reports that the engine itself has failed, and the remedy if it may have had too few slots. Its own messages are
    /// on standard error already.
    fn tell_of_the_engine(&self) {
        let failed = self.status.filter(|status| !status.success());
        let Some(status) = failed.filter(|_| !self.agreed && self.asked_to_end.is_none()) else { return };
        if self.command.engine.spawns_ranks() {
            return;
        }
        let name = self.command.release.title();
        let hint = shortage(self.command, self.size).map_or(String::new(), |hint| format!(". {hint}"));
        complain!(
            "hostbuf run: {name} ended ({status}) before any rank had the buffer; see its own messages above{hint}"
        );
    }

    /// The rank that was lost first, in words.
    fn lost(&self) -> Option<String> {
        Some(format!("{} before all ranks had the buffer", self.first.as_ref()?.text()))
    }

    fn agents_died(&mut self) -> String {
        self.agent_noise.drain();
        self.no_agents()
    }

    fn no_agents(&self) -> String {
        let noise = self.agent_noise.seen.iter().map(|l| l.trim());
        let mut said: Vec<&str> = noise.filter(|l| l.chars().any(char::is_alphanumeric)).collect();
        if said.len() > MOST_SAID {
            said.truncate(MOST_SAID);
            said.push("...");
        }
        let said = match self.agents_status {
            _ if !said.is_empty() => said.join(" "),
            Some(status) if status.signal().is_some() => format!("it was ended by {}", death(status)),
            _ => "it printed no reason".into(),
        };
        if self.ready > 0 {
            let status = self.agents_status.map_or("?".into(), |s| s.to_string());
            return format!("an agent of this job ended ({status}) before the buffer was agreed on: {said}");
        }
        format!("{} could not start an agent on every host: {said}", self.command.release.title())
    }

    fn note(&self, line: &Invocation) {
        if self.voice.verbose {
            let words: Vec<_> = line.words.iter().map(|w| w.to_string_lossy()).collect();
            complain!("hostbuf: starting {}", words.join(" "));
        }
    }

    /// Sleeps until something happens, and looks at what it is.
    fn wait(&mut self) -> Result<()> {
        let ending = self.stopping.is_some()
            || self.failing.is_some()
            || self.over.is_some()
            || self.unreachable.is_some();
        let timeout = if ending { PollTimeout::from(100u8) } else { PollTimeout::NONE };
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend([&self.agent_lines, &self.agent_noise].into_iter().filter_map(Lines::poll_fd));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(Error::Os { doing: "waiting".into(), source: e.into() }),
        }
        drop(fds);
        self.hear_signals();
        for line in self.agent_lines.read() {
            self.hear(&line);
        }
        let noise = self.agent_noise.read();
        if noise.iter().any(|line| self.command.engine.reports_unreachable_host(line)) {
            self.unreachable.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn hear_signals(&mut self) {
        while let Some(Received { signal, by_terminal }) = self.signals.next() {
            self.forward(signal, by_terminal);
            match signal {
                Signal::SIGTSTP => {
                    self.signals.stop();
                    // Running again: whoever continued us meant all of us.
                    self.forward(Signal::SIGCONT, by_terminal);
                }
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP => {
                    self.asked_to_end = Some(signal);
                    if !self.agreed {
                        // Ranks that run already, unknown to us as yet, may take it or leave it.
                        self.ended_by = Some(signal);
                        if self.spawned.is_empty() {
                            self.failure = Some("no rank has been started".into());
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Passes a signal on to the program's job, unless the terminal has done so.
    fn forward(&self, signal: Signal, by_terminal: bool) {
        if by_terminal {
            return;
        }
        let handled_by_ranks = matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2);
        if self.command.engine.spawns_ranks() && !handled_by_ranks && !self.ranks.is_empty() {
            // mpirun signals the process group of a rank, so a shell that waits for the program gets the signal too.
            return descendants::signal(&self.below(), signal);
        }
        for child in &self.ranks {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
    }

    /// Returns the ranks that this launcher has started itself, and all their descendants.
    fn below(&self) -> Vec<i32> {
        descendants::living(&self.outside())
    }

    /// Returns the children that are not ranks: the agents' job, and those from before the job.
    fn outside(&self) -> Vec<u32> {
        self.agents.iter().map(Child::id).chain(self.foreign.iter().copied()).collect()
    }

    fn hear(&mut self, line: &str) {
        match Report::parse(line) {
            Some(Report::Ready { agents, .. }) => {
                self.ready += 1;
                self.expected = Some(agents);
            }
            Some(Report::Progress { host, done, total }) => self.progress.taking(host, done, total),
            Some(Report::Filling { host, buffer, done, ended }) => {
                self.progress.filling(&buffer, host, done, ended);
            }
            Some(Report::Uncovered { message }) => {
                self.progress.taken();
                if !self.voice.quiet {
                    complain!("hostbuf run: {message}");
                }
            }
            Some(Report::Agreed { address, rounds, microseconds, ranks, without, attaching }) => {
                self.agreed = true;
                self.progress.taken();
                if self.voice.verbose {
                    let who = covered(ranks, without, attaching);
                    complain!(
                        "hostbuf: agreed on {address:#x} ({rounds} {}, {microseconds} µs since the agents started): {who}",
                        if rounds == 1 { "round" } else { "rounds" }
                    );
                }
            }
            Some(Report::Unstarted { status }) => {
                self.unstarted.get_or_insert(status);
            }
            Some(Report::Failed { message }) => {
                self.progress.end();
                if self.failure.is_none() {
                    // What the agent misses may be a rank that this launcher has ended since another one died.
                    self.failure = self.lost().or(Some(message));
                    // The agents tell their ranks; one that ends by itself has a better exit status.
                    self.stop_soon();
                }
            }
            None => {
                if self.voice.verbose {
                    complain!("hostbuf: an agent said: {line}");
                }
            }
        }
    }

    /// Collects what has ended.
    fn reap(&mut self) -> Result<()> {
        let failed = |source| Error::Os { doing: "waiting for a child".into(), source };
        let local = self.command.engine.spawns_ranks();
        let mut left = Vec::new();
        let mut died = false;
        for mut child in std::mem::take(&mut self.ranks) {
            match child.try_wait().map_err(failed)? {
                None => left.push(child),
                Some(status) => {
                    died |= !status.success();
                    if let (false, Some(code @ (126 | 127))) = (self.agreed, status.code()) {
                        self.unstarted = Some(code as u8);
                    }
                    if local && status.signal().is_some() && self.first.is_none() && self.stopping.is_none() {
                        let rank = self.spawned.iter().position(|&pid| pid == child.id());
                        self.first = rank.map(|rank| FirstDeath { rank, pid: child.id(), status });
                    }
                    if self.status.is_none_or(|s| s.success()) {
                        self.status = Some(status);
                    }
                }
            }
        }
        self.ranks = left;
        if local {
            let own = self.ranks.iter().chain(&self.agents).map(Child::id).collect::<Vec<_>>();
            descendants::reap(&own);
        }
        if local && died {
            // As an mpirun does: a rank that fails ends the job.
            if self.agreed || self.first.is_some() { self.stop() } else { self.stop_soon() }
        }
        if let Some(agents) = &mut self.agents
            && let Some(status) = agents.try_wait().map_err(failed)?
        {
            self.agents_status = Some(status);
            self.agents = None;
            for line in self.agent_lines.drain() {
                self.hear(&line);
            }
        }
        Ok(())
    }

    /// Asks the program's job to end if it does not do so by itself.
    fn stop_soon(&mut self) {
        self.failing.get_or_insert_with(Instant::now);
    }

    /// Asks the program's job to end.
    fn stop(&mut self) {
        if self.stopping.is_none() {
            self.stopping = Some((Instant::now(), false));
            self.forward(Signal::SIGTERM, false);
        }
    }

    fn escalate(&mut self) {
        let patience = self.command.engine.abort_time();
        if self.failing.is_some_and(|since| since.elapsed() > patience) {
            self.stop();
        }
        if let Some((since, killed @ false)) = &mut self.stopping
            && since.elapsed() > GRACE
        {
            *killed = true;
            self.forward(Signal::SIGKILL, false);
        }
    }

    /// Both jobs end, whatever happened.
    fn end(&mut self) {
        self.progress.end();
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.command.engine.spawns_ranks() {
            let in_order = self.failure.is_none() && self.status.is_none_or(|s| s.success());
            let patience = match self.stopping {
                Some((_, true)) => Patience::NONE,
                None if in_order => Patience { linger: LINGER, grace: GRACE },
                _ => Patience { linger: Duration::ZERO, grace: GRACE },
            };
            let outside = self.outside();
            descendants::end(&outside, patience, || self.signals.next().is_some_and(Received::ends));
        }
        let Some(mut agents) = self.agents.take() else { return };
        // They leave when their ranks have; what they said last is still to be heard.
        if self.failure.is_none() && self.patience(NOTICE, &mut agents) {
            return;
        }
        // An mpiexec that is ended while it starts its daemon may leave the daemon and the agent behind.
        descendants::adopt();
        let pid = Pid::from_raw(agents.id() as i32);
        if kill(pid, Signal::SIGTERM).is_err() || !self.patience(GRACE, &mut agents) {
            let _ = agents.kill();
            let _ = agents.wait();
        }
        let patience = Patience { linger: NOTICE, grace: GRACE };
        descendants::end(&self.foreign, patience, || self.signals.next().is_some_and(Received::ends));
    }

    /// Returns whether the agents end within `limit`, and handles events meanwhile.
    fn patience(&mut self, limit: Duration, agents: &mut Child) -> bool {
        let begun = Instant::now();
        loop {
            let ended = !matches!(agents.try_wait(), Ok(None));
            for line in self.agent_lines.read() {
                self.hear(&line);
            }
            if ended || begun.elapsed() >= limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
