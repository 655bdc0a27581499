//! Allocating a buffer without a launcher, collectively in a running program.

#![allow(unsafe_code, reason = "takes over mappings that this process has just made")]

use std::time::Instant;

use tracing::info_span;

use crate::agree::election::{self, RangeRequest, Ranks};
use crate::agree::handover::Handover;
use crate::error::{Error, Result};
use crate::job::{Collective, Hosts, Reduce, all_or_none, cores_of, random_number, text_of_first};
use crate::segment::files::Segments;
use crate::segment::handle::HostBuffer;
use crate::segment::identity::Identity;
use crate::segment::job_request::check_all;
use crate::segment::layout::Layout;
use crate::segment::mapped_segment::MappedSegment;
use crate::segment::mapping::Mapping;
use crate::segment::options::BufferOptions;
use crate::segment::phase::Phase;
use hostbuf_memory::populate::Workers;
use hostbuf_os::cores::Cores;
use hostbuf_protocol::ballot::Holds;
use hostbuf_protocol::message::AddressWindow;

impl HostBuffer {
    /// Allocates a buffer by `options` on each host of `group`, at one address on all of them.
    /// Collective: it succeeds on all ranks or fails on all.
    ///
    /// Threads of the running program may map memory concurrently. Each rank holds the agreed range
    /// from the vote on, so it cannot be lost.
    ///
    /// ```
    /// # use hostbuf::{HostBuffer, BufferOptions, Pages, job::Solo};
    /// let options = BufferOptions::new(8 << 20).pages(Pages::Small).name("table");
    /// let buffer = HostBuffer::allocate(&Solo, options)?;
    /// assert_eq!(buffer.len(), 8 << 20);
    /// # Ok::<(), hostbuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::NoSpace`] or [`Error::Unsupported`] of a host that cannot
    /// allocate the buffer, [`Error::Memory`] of one that cannot place it; [`Error::Disagreed`] if
    /// the ranks make different requests, or if no range is free in all of them.
    pub fn allocate(group: &dyn Collective, options: BufferOptions) -> Result<HostBuffer> {
        let _span = info_span!("allocate", buffer = %options.name, size = options.size).entered();
        all_or_none(group, check_all(std::slice::from_ref(&options)))?;
        same_request(group, &options)?;
        if let Some(section) = options.sections.iter().find(|section| section.is_on_gpus()) {
            return Err(Error::Unsupported {
                what: format!("the GPU section \"{}\" in HostBuffer::allocate", section.name),
                why: "GPU sections are mapped before main: request them from hostbuf run or hostbuf exec \
                      (--section name=..,size=..,gpu=0)"
                    .into(),
            });
        }
        let hosts = Hosts::new(group)?;
        let job = random_number(group)?;

        let mut phases = [0; Phase::COUNT];
        let buffers = [options];
        let begun = Instant::now();
        let handover = all_or_none(group, Handover::open(&*hosts.local, job))?;
        phases[Phase::Gather as usize] = begun.elapsed().as_micros() as u64;
        let cores = all_or_none(group, cores_of(&*hosts.local))?;
        let segments =
            all_or_none(group, handover.lead(group, || create(job, &buffers, cores, &mut phases)))?;

        let begun = Instant::now();
        let mut layout = Layout::of(&buffers);
        // A sanitizer in this process is visible as a symbol, since the C library runs here.
        let mut ranks = Ranks { group, holds: Holds::new(address_window()), refusal: None };
        let outcome =
            election::elect(&mut ranks, RangeRequest::new(layout.length as usize, layout.align as usize))?;
        let Some(address) = outcome.address else {
            return Err(election::disagreement(group, ranks.refusal.map(|why| (group.rank(), why))));
        };
        layout.address = address as u64;
        ranks.holds.keep(address);
        phases[Phase::Agree as usize] = begun.elapsed().as_micros() as u64;

        let begun = Instant::now();
        let _map = info_span!("map", address).entered();
        let published = segments.map(|segments| {
            let mut identity = Identity::new(job);
            identity.host = hosts.index.0 as u32;
            identity.hosts = hosts.count as u32;
            identity.rounds = outcome.rounds;
            Ok(segments.publish(identity, &layout, phases)?.descriptors)
        });
        let published = all_or_none(group, published.transpose())?;
        let range = layout.range();
        let descriptors = all_or_none(group, handover.descriptors(&range, published))?;
        let raw: Vec<i32> = descriptors.iter().map(std::os::fd::AsRawFd::as_raw_fd).collect();
        let mapped = ranks.holds.map(&range, &raw).map_err(|e| {
            Error::os(format!("mapping the buffer at {address:#x}"))(std::io::Error::from_raw_os_error(e.0))
        });
        // A rank that mapped the range unmaps it again if another rank could not map it.
        // SAFETY: map() succeeded, so this process owns the whole range, and nothing else unmaps
        // it.
        let mapping = mapped.map(|()| unsafe { Mapping::new(&range) });
        let mapping = all_or_none(group, mapping)?;
        // SAFETY: mapped just now, and unmapped by `mapping`.
        let opened = unsafe { MappedSegment::open(&range, descriptors, Some(mapping)) };
        let segment = all_or_none(group, opened)?;
        tracing::debug!(elapsed = ?begun.elapsed(), address = %format_args!("{address:#x}"), "mapped");
        Ok(HostBuffer { segment, index: 0 })
    }
}

/// Returns the part of the address space that the sanitizers in this process leave usable.
fn address_window() -> AddressWindow {
    let present = |name: &std::ffi::CStr| {
        // SAFETY: looks a symbol up in the loaded objects; no code of theirs runs.
        !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
    };
    if present(c"__tsan_init") || present(c"__msan_init") {
        AddressWindow::Sanitized
    } else {
        AddressWindow::Anywhere
    }
}

/// Creates the memory files and populates them. Stores the duration of both phases.
fn create(
    job: u128,
    buffers: &[BufferOptions],
    cores: Cores,
    phases: &mut [u64; Phase::COUNT],
) -> Result<Segments> {
    let begun = Instant::now();
    let mut segments = Segments::create(job, buffers)?;
    phases[Phase::Create as usize] = begun.elapsed().as_micros() as u64;
    let begun = Instant::now();
    segments.populate(Workers::on(cores), &mut |_| {})?;
    phases[Phase::Populate as usize] = begun.elapsed().as_micros() as u64;
    Ok(segments)
}

fn same_request(group: &dyn Collective, options: &BufferOptions) -> Result<()> {
    let mine = options.request_text();
    let hash = xxhash_rust::xxh3::xxh3_64(mine.as_bytes());
    let mut words = [hash, !hash];
    group.all_reduce(&mut words, Reduce::Min)?;
    if words[0] == !words[1] {
        return Ok(());
    }
    // The error names a rank whose request differs from that of the first rank.
    let first = text_of_first(group, &mine)?;
    let why = format!("it requests \"{mine}\", and rank 0 requests \"{first}\"");
    Err(election::disagreement(group, (mine != first).then(|| (group.rank(), why))))
}
