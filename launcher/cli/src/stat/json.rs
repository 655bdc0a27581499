//! The report for programs.

use std::time::Duration;

use hostbuf::{Access, FillState, Phase};
use serde_json::{Value, json};

use super::report::{Buffer, BufferRegistration, Job, Member, share, touched, user};
use super::scan::Area;
use super::{gpu_sections, loads, sections};

/// Returns the report as JSON. Sizes are in bytes, addresses are hexadecimal text; `null` stands
/// for a value that could not be read.
pub fn json(jobs: &[Job]) -> Value {
    json!({ "host": hostbuf_os::process::host_name(), "jobs": jobs.iter().map(job_json).collect::<Vec<_>>() })
}

fn job_json(job: &Job) -> Value {
    let identity = job.control.as_ref().ok().map(|s| &s.identity);
    let phases = job.control.as_ref().ok().map(|s| {
        let phases = Phase::ALL.into_iter().zip(s.phases);
        let entry =
            |(phase, took): (Phase, Duration)| (phase.name().to_owned(), (took.as_micros() as u64).into());
        phases.map(entry).collect::<serde_json::Map<_, _>>()
    });
    let members = |list: &[Member]| -> Vec<Value> {
        list.iter().map(|m| json!({ "pid": m.pid, "name": m.name, "child": m.child })).collect()
    };
    json!({
        "job": format!("{:032x}", job.number),
        "uid": job.uid,
        "user": user(job.uid),
        "host_index": identity.map(|i| i.host),
        "hosts": identity.map(|i| i.hosts),
        "address": identity.map(|i| format!("{:#x}", i.address)),
        "reserved_bytes": identity.map(|i| i.length),
        "agreement_rounds": identity.map(|i| i.rounds),
        "phases_us": phases,
        "problems": job.problems(),
        "registrations_not_listed": job.unlisted(),
        "ranks": members(&job.ranks),
        "agents": members(&job.agents),
        "files": job.loads.as_ref().map(loads::json),
        "buffers": job.buffers.iter().enumerate().map(|(i, b)| buffer_json(job, i, b)).collect::<Vec<_>>(),
    })
}

fn buffer_json(job: &Job, index: usize, buffer: &Buffer) -> Value {
    let identity = job.control.as_ref().ok().map(|snapshot| &snapshot.identity);
    let state = buffer.state.as_ref();
    let mappings = |(pid, a): &(i32, Area)| {
        json!({
            "pid": pid,
            "address": format!("{:#x}", a.start),
            "writable": a.writable,
            "pss_bytes": share(a, buffer.sharers(a.file)),
            "rss_bytes": touched(a),
        })
    };
    let (ranks, _) = job.counts();
    let one = buffer.taken.unwrap_or(buffer.length);
    json!({
        "name": buffer.name,
        "address": buffer.address.map(|a| format!("{a:#x}")),
        "size_bytes": buffer.size,
        "length_bytes": buffer.length,
        "pages": buffer.pages.as_ref().map(|(pages, _)| pages),
        "huge_bytes": buffer.pages.as_ref().map(|(_, huge)| huge),
        "huge_mapped_bytes": buffer.huge_mapped(),
        "page_bytes": buffer.areas.iter().map(|(_, a)| a.page).max(),
        "lazy": buffer.lazy,
        "fill": state.and_then(|s| s.fill.as_ref().ok()).map(|f: &FillState| f.name()),
        "sealed": buffer.sealed,
        "generation": state.and_then(|s| s.generation.as_ref().ok()),
        "high_water_bytes": state.and_then(|s| s.high_water.as_ref().ok()),
        "taken_bytes": buffer.taken,
        "pss_bytes": buffer.pss(),
        "pss_source": if buffer.is_hugetlb() { "equal shares of hugetlb pages" } else { "smaps" },
        "rss_bytes": buffer.rss(),
        "private_copies": ranks,
        "private_copies_bytes": one.saturating_mul(ranks as u64),
        "sections": identity.map_or_else(Vec::new, |identity| sections::json(identity, index)),
        "gpu_sections": job.control.as_ref().map_or_else(|_| Vec::new(), |snapshot| gpu_sections::json(snapshot, index)),
        "mappings": buffer.areas.iter().map(mappings).collect::<Vec<_>>(),
        "registrations": buffer.registrations.iter().map(registration_json).collect::<Vec<_>>(),
    })
}

fn registration_json(held: &BufferRegistration) -> Value {
    let rights = [
        ("read", Access::READ),
        ("write", Access::WRITE),
        ("remote_read", Access::REMOTE_READ),
        ("remote_write", Access::REMOTE_WRITE),
        ("remote_atomic", Access::REMOTE_ATOMIC),
    ];
    let access: Vec<&str> =
        rights.into_iter().filter(|(_, right)| held.access.allows(*right)).map(|(name, _)| name).collect();
    json!({
        "device": held.device,
        "pid": held.pid,
        "name": held.name,
        "offset_bytes": held.offset,
        "length_bytes": held.length,
        "access": access,
    })
}
