//! The threads that allocate the pages of new segments, so that other clients do not wait.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};

use hostbuf_memory::{AnonymousSegment, Demand, Pages, populate::Workers};
use hostbuf_os::process::start_remedy;
use hostbuf_os::thread;
use nix::sys::eventfd::EventFd;
use nix::sys::signal::SigSet;

use super::broker_tag::BrokerTag;
use super::segment_bytes::SegmentBytes;
use super::segment_data::SegmentData;
use super::segment_record::{RowRecord, SegmentFiles, segment_bytes};
use crate::segment::{RowView, SegmentFile, SegmentGeometry, SpaceEvent, TableView, ViewAccess};
use crate::wire::SegmentTerms;

/// The new files of a segment.
#[derive(Debug)]
pub(super) struct MadeSegment {
    pub(super) files: SegmentFiles,
    pub(super) table: TableView,
    pub(super) rows: Vec<Option<RowRecord>>,
}

/// The result for one request, which `ticket` identifies.
#[derive(Debug)]
pub(super) struct MakerResult {
    pub(super) ticket: u64,
    pub(super) made: hostbuf_memory::Result<MadeSegment>,
}

/// The largest number of threads that make segments at a time. Each of them allocates pages on
/// several cores.
const MAX_THREADS: usize = 4;

/// The threads that make segments.
#[derive(Debug)]
pub(super) struct SegmentMaker {
    results: mpsc::Receiver<MakerResult>,
    sender: mpsc::Sender<MakerResult>,
    wake: Arc<EventFd>,
    tag: BrokerTag,
    running: usize,
    /// The segments that wait for a thread, the oldest first, each with its ticket.
    queue: VecDeque<(u64, SegmentTerms)>,
}

/// Returns the kind of pages of a data file, and its length on them.
fn data_demand(geometry: SegmentGeometry) -> Demand {
    let bytes = geometry.data_bytes();
    // Pages of a reserved pool belong to those who ask for them by name.
    let pages = if bytes >= Pages::Transparent.size() { Pages::Transparent } else { Pages::Small };
    Demand::new(bytes, pages)
}

/// Returns the number of bytes of a new segment.
pub(super) fn demanded_bytes(terms: SegmentTerms) -> SegmentBytes {
    let data = if terms.gpu.is_some() { 0 } else { data_demand(terms.geometry).length() };
    segment_bytes(terms, data)
}

impl SegmentMaker {
    /// Makes a maker for the broker with this mark, which writes to `wake` after each result.
    pub(super) fn new(wake: Arc<EventFd>, tag: BrokerTag) -> SegmentMaker {
        let (sender, results) = mpsc::channel();
        SegmentMaker { results, sender, wake, tag, running: 0, queue: VecDeque::new() }
    }

    /// Makes a segment as soon as a thread is free.
    pub(super) fn start(&mut self, ticket: u64, terms: SegmentTerms) {
        self.queue.push_back((ticket, terms));
        self.start_threads();
    }

    fn start_threads(&mut self) {
        while self.running < MAX_THREADS {
            let Some((ticket, terms)) = self.queue.pop_front() else { return };
            self.running += 1;
            let (sender, wake, tag) = (self.sender.clone(), self.wake.clone(), self.tag);
            let started = thread::spawn(c"hostbuf-segment", move || {
                let _ = SigSet::all().thread_block();
                // The receiver lives as long as the broker.
                let _ = sender.send(MakerResult { ticket, made: make(terms, tag) });
                let _ = wake.write(1);
            });
            if let Err(source) = started {
                let doing = format!("starting a thread of the broker{}", start_remedy(&source));
                let made = Err(hostbuf_memory::Error::Os { doing, source });
                let _ = self.sender.send(MakerResult { ticket, made });
                let _ = self.wake.write(1);
            }
        }
    }

    /// Returns the next result.
    pub(super) fn next(&mut self) -> Option<MakerResult> {
        let result = self.results.try_recv().ok()?;
        self.running -= 1;
        self.start_threads();
        Some(result)
    }
}

fn make(terms: SegmentTerms, tag: BrokerTag) -> hostbuf_memory::Result<MadeSegment> {
    let geometry = terms.geometry;
    let os = |doing: &str| {
        let doing = doing.to_owned();
        move |source: std::io::Error| hostbuf_memory::Error::Os { doing, source }
    };
    let (data, table_file) = if terms.gpu.is_some() {
        // The producer makes the memory. The table shows a later broker who has it.
        (SegmentData::Gpu(None), SegmentFile::Table.create_named(&tag.data_file(), geometry)?)
    } else {
        let data = make_data(&tag.data_file(), data_demand(geometry))?;
        // The broker does not map the blocks.
        let data: OwnedFd = data.as_fd().try_clone_to_owned().map_err(os("keeping the data file"))?;
        (SegmentData::Host(data.into()), SegmentFile::Table.create(geometry)?)
    };
    let table = TableView::map(table_file.as_fd(), geometry, ViewAccess::Write)?;
    let mut rows = Vec::new();
    for _ in 0..geometry.readers() {
        let file = SegmentFile::Row.create(geometry)?;
        let view = RowView::map(file.as_fd(), geometry, ViewAccess::Write)?;
        rows.push(Some(RowRecord { file: file.into(), view, reader: None, is_awaited: false }));
    }
    let space = SpaceEvent::new().map_err(os("opening an event descriptor"))?;
    Ok(MadeSegment { files: SegmentFiles { data, table: table_file.into(), space }, table, rows })
}

/// Makes a data file, of small pages if the host does not have the huge ones: its memory may be
/// fragmented for a while. The length is the same.
fn make_data(name: &str, demand: Demand) -> hostbuf_memory::Result<AnonymousSegment> {
    let length = demand.length();
    let make = |demand| AnonymousSegment::new(name, demand, Workers::of_this_process());
    match make(demand) {
        Err(error @ hostbuf_memory::Error::Unsupported { .. }) => {
            tracing::info!(%error, "a segment has small pages");
            make(Demand::new(length, Pages::Small))
        }
        made => made,
    }
}
