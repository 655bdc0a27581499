//! The GPU sections in the report.

use hostbuf::Bytes;
use hostbuf::segment::{BufferIdentity, GpuPiece};
use serde_json::{Value, json};

use super::control::Snapshot;

/// A GPU section with its state.
pub(super) struct ReportedGpuSection<'a> {
    pub(super) pieces: &'a [GpuPiece],
    /// The address, if the ranks have agreed on it.
    pub(super) address: Option<u64>,
    pub(super) frozen: bool,
}

impl ReportedGpuSection<'_> {
    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.length).sum()
    }

    /// Returns the numbers of the GPUs, in the order of the pieces: `0,1`.
    fn gpus(&self) -> String {
        self.pieces.iter().map(|piece| piece.gpu.to_string()).collect::<Vec<_>>().join(",")
    }
}

/// Returns the sections of the buffer with this index.
pub(super) fn sections(snapshot: &Snapshot, buffer: usize) -> impl Iterator<Item = ReportedGpuSection<'_>> {
    let state = snapshot.states.get(buffer).and_then(|state| state.gpu.as_ref().ok());
    let range = state.and_then(|(range, _)| *range);
    snapshot.identity.gpu_sections(buffer).enumerate().map(move |(i, pieces)| ReportedGpuSection {
        pieces,
        address: range.map(|range| range + pieces[0].offset),
        frozen: state.and_then(|(_, frozen)| frozen.get(i)).copied().unwrap_or(false),
    })
}

/// Returns the rows of all GPU sections; empty if there are none.
pub(super) fn rows(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (index, buffer) in snapshot.identity.buffers.iter().enumerate() {
        rows.extend(sections(snapshot, index).map(|section| row(buffer, &section)));
    }
    if !rows.is_empty() {
        let head = ["GPU SECTION", "OF", "ADDRESS", "SIZE", "GPU", "STATE"];
        rows.insert(0, head.map(str::to_owned).to_vec());
    }
    rows
}

fn row(buffer: &BufferIdentity, section: &ReportedGpuSection<'_>) -> Vec<String> {
    vec![
        section.pieces[0].section.clone(),
        buffer.name(),
        section.address.map_or_else(|| "-".into(), |address| format!("{address:#x}")),
        Bytes(section.bytes()).to_string(),
        section.gpus(),
        if section.frozen { "frozen" } else { "writable" }.into(),
    ]
}

/// Returns the GPU sections of the buffer with this index as JSON.
pub(super) fn json(snapshot: &Snapshot, buffer: usize) -> Vec<Value> {
    let piece = |piece: &GpuPiece| json!({ "gpu": piece.gpu, "length_bytes": piece.length });
    let section = |section: ReportedGpuSection<'_>| {
        json!({
            "name": section.pieces[0].section,
            "address": section.address.map(|address| format!("{address:#x}")),
            "length_bytes": section.bytes(),
            "pieces": section.pieces.iter().map(piece).collect::<Vec<_>>(),
            "frozen": section.frozen,
        })
    };
    sections(snapshot, buffer).map(section).collect()
}
