//! The GPU sections in the picture of the buffers.

use hostbuf::Bytes;

use super::control::Snapshot;
use super::gpu_sections::{ReportedGpuSection, sections};
use crate::picture::canvas::{Canvas, MARGIN, Rect, TextForm};
use crate::picture::colors;

/// The height of the bar of a section in pixels.
const BAR: f64 = 24.0;

/// Draws the GPU sections of the buffer with this index into columns of `width` from `left` on,
/// below `top`: a bar for each section, with the part of each GPU. Returns the lower edge.
pub(super) fn draw(
    canvas: &mut Canvas,
    snapshot: &Snapshot,
    buffer: usize,
    left: f64,
    width: f64,
    top: f64,
) -> f64 {
    let mut y = top;
    for section in sections(snapshot, buffer) {
        y += 22.0;
        canvas.text(left, y - 4.0, TextForm::SMALL, &label(&section));
        canvas.text(MARGIN, y + 16.0, TextForm::BODY, "GPU");
        let mut from = left;
        for piece in section.pieces {
            let part = width * piece.length as f64 / section.bytes().max(1) as f64;
            canvas.rectangle(Rect::new(from, y, part, BAR), 0.0, colors::GPU, 0.75, colors::PAPER);
            let form = TextForm::SMALL;
            let text = form.fitting(&format!("GPU {}, {}", piece.gpu, Bytes(piece.length)), part - 8.0);
            canvas.text(from + 4.0, y + 16.0, form, &text);
            from += part;
        }
        y += BAR;
    }
    y
}

/// Returns the name, the length, the address and the state of a section.
fn label(section: &ReportedGpuSection<'_>) -> String {
    let words = [
        Some(section.pieces[0].section.clone()),
        Some(Bytes(section.bytes()).to_string()),
        section.address.map(|address| format!("at {address:#x}")),
        section.frozen.then(|| "frozen".to_owned()),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
