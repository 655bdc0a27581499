//! The report of `hostbuf stat` as text.

use std::fmt::Write;

use hostbuf::{Bytes, Phase};
use hostbuf_os::process;

use crate::columns::align;

use super::duration_text::duration;
use super::report::{Buffer, BufferRegistration, Job, Member, user};
use super::{gpu_sections, loads, sections};

/// Formats all jobs, or one line if there is none.
pub fn text(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        let whose = if nix::unistd::geteuid().is_root() { "" } else { " of this user" };
        return format!("no host buffers{whose} on {}\n", process::host_name());
    }
    jobs.iter().map(job).collect::<Vec<_>>().join("\n")
}

fn job(job: &Job) -> String {
    let mut text = format!("job {:032x}  user {}  on {}", job.number, user(job.uid), process::host_name());
    if let Ok(snapshot) = &job.control {
        let identity = &snapshot.identity;
        match identity.hosts {
            0 => {}
            hosts => write!(text, "  (host {} of {hosts})", u64::from(identity.host) + 1).expect("to memory"),
        }
    }
    text.push('\n');
    for problem in job.problems() {
        writeln!(text, "  ! {problem}").expect("to memory");
    }
    if !job.buffers.is_empty() {
        text.push_str(&align(&rows(job)));
    }
    let sections = job.control.as_ref().map_or_else(|_| Vec::new(), |s| sections::rows(&s.identity));
    if !sections.is_empty() {
        text.push_str(&align(&sections));
    }
    let on_gpus = job.control.as_ref().map_or_else(|_| Vec::new(), gpu_sections::rows);
    if !on_gpus.is_empty() {
        text.push_str(&align(&on_gpus));
    }
    if let Some(report) = &job.loads {
        text.push_str(&align(&loads::rows(report)));
    }
    let registered = registered(job);
    if !registered.is_empty() {
        text.push_str(&align(&registered));
    }
    if job.unlisted() > 0 {
        let count = plural(job.unlisted() as usize, "registration has", "registrations have");
        writeln!(text, "  {count} not been listed: the list was full").expect("to memory");
    }
    let (ranks, children) = job.counts();
    if job.control.as_ref().is_ok_and(|snapshot| snapshot.identity.buffers.is_empty()) {
        // Files alone are loaded. The job has ranks all the same.
        text.push_str("  ranks: not listed, since the job has no buffer that they map\n");
    } else {
        let count = plural(ranks, "rank", "ranks");
        writeln!(text, "  {count}: {}", people(&job.ranks, false)).expect("to memory");
    }
    if children > 0 {
        let count = plural(children, "child of a rank", "children of ranks");
        writeln!(text, "  {count}: {}", people(&job.ranks, true)).expect("to memory");
    }
    if !job.agents.is_empty() {
        let count = plural(job.agents.len(), "agent", "agents");
        writeln!(text, "  {count}: {}", people(&job.agents, false)).expect("to memory");
    }
    if let Ok(snapshot) = &job.control {
        let phases = Phase::ALL.into_iter().zip(snapshot.phases);
        let phases = phases.map(|(phase, took)| format!("{} {}", phase.name(), duration(took)));
        writeln!(text, "  phases: {}", phases.collect::<Vec<_>>().join(", ")).expect("to memory");
    }
    text
}

const HEAD: [&str; 10] = [
    "BUFFER",
    "ADDRESS",
    "SIZE",
    "PAGES",
    "HUGE",
    "FILL",
    "GEN",
    "USED",
    "PSS OF ALL",
    "PRIVATE COPIES WOULD TAKE",
];

fn rows(job: &Job) -> Vec<Vec<String>> {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(job.buffers.iter().map(|b| row(job, b)));
    rows
}

fn row(job: &Job, buffer: &Buffer) -> Vec<String> {
    let unknown = || "?".to_owned();
    let state = buffer.state.as_ref();
    let number = |n: &u64| n.to_string();
    let mut fill = state.and_then(|s| s.fill.as_ref().ok()).map_or_else(unknown, |f| f.name().to_owned());
    if buffer.sealed == Some(true) {
        fill.push_str(", sealed");
    }
    let mut pages = buffer.pages.as_ref().map_or_else(unknown, |(pages, _)| pages.clone());
    if buffer.lazy == Some(true) {
        pages.push_str(", lazy");
    }
    // The huge pages of a lazy buffer are known only from the mappings that have touched them.
    let huge = buffer.pages.as_ref().map_or(0, |(_, huge)| *huge).max(buffer.huge_mapped());
    let (ranks, _) = job.counts();
    let one = buffer.taken.unwrap_or(buffer.length);
    let pss = match buffer.taken {
        Some(taken) if taken < buffer.length => format!("{} ({} taken)", Bytes(buffer.pss()), Bytes(taken)),
        _ => Bytes(buffer.pss()).to_string(),
    };
    vec![
        buffer.name.clone(),
        buffer.address.map_or_else(unknown, |a| format!("{a:#x}")),
        Bytes(buffer.size.unwrap_or(buffer.length)).to_string(),
        pages,
        Bytes(huge).to_string(),
        fill,
        state.and_then(|s| s.generation.as_ref().ok()).map_or_else(unknown, number),
        state.and_then(|s| s.high_water.as_ref().ok()).map_or_else(unknown, |n| Bytes(*n).to_string()),
        pss,
        format!("{} ({ranks} x {})", Bytes(one.saturating_mul(ranks as u64)), Bytes(one)),
    ]
}

/// Returns the rows of the registrations; empty if there are none.
fn registered(job: &Job) -> Vec<Vec<String>> {
    let row = |buffer: &Buffer, held: &BufferRegistration| {
        let bytes = if (held.offset, held.length) == (0, buffer.length) {
            format!("{} (all)", Bytes(held.length))
        } else {
            format!("{} at {}", Bytes(held.length), Bytes(held.offset))
        };
        let process = format!("{} {}", held.name, held.pid);
        vec![buffer.name.clone(), held.device.clone(), process, bytes, held.access.to_string()]
    };
    let rows = job.buffers.iter().flat_map(|b| b.registrations.iter().map(move |held| row(b, held)));
    let mut rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        let head = ["REGISTERED", "WITH", "BY", "BYTES", "FOR"];
        rows.insert(0, head.map(str::to_owned).to_vec());
    }
    rows
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Formats process names with their IDs: `app 17 18 19, sh 12`.
fn people(members: &[Member], children: bool) -> String {
    let mut names: Vec<(&str, Vec<String>)> = Vec::new();
    for member in members.iter().filter(|m| m.child == children) {
        match names.iter_mut().find(|(name, _)| *name == member.name) {
            Some((_, pids)) => pids.push(member.pid.to_string()),
            None => names.push((&member.name, vec![member.pid.to_string()])),
        }
    }
    if names.is_empty() {
        return "none".into();
    }
    names.iter().map(|(name, pids)| format!("{name} {}", pids.join(" "))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_grouped_by_name() {
        let member = |pid, name: &str, child| Member { pid, name: name.into(), child };
        let members = [member(1, "app", false), member(2, "sh", true), member(3, "app", false)];
        assert_eq!(people(&members, false), "app 1 3");
        assert_eq!(people(&members, true), "sh 2");
        assert_eq!(people(&members[1..2], false), "none");
    }
}
