//! Boxes with a label that contain other boxes.

use super::canvas::{Canvas, LINE_HEIGHT, Rect, TextForm};
use super::colors;

/// The distance between two boxes, and between a box and its contents, in pixels.
const GAP: f64 = 8.0;

/// A row of boxes.
struct BoxRow<'a> {
    /// The boxes, each with its width.
    parts: Vec<(&'a NestedBox, f64)>,
    /// The height of the tallest one.
    height: f64,
}

/// A box with lines of text, and with other boxes below them.
#[derive(Clone, Debug)]
pub(crate) struct NestedBox {
    /// The lines of text. The first one is bold in a container.
    pub(crate) lines: Vec<String>,
    /// The boxes in it.
    pub(crate) contents: Vec<NestedBox>,
    /// True for a container, even an empty one.
    pub(crate) is_outer: bool,
    /// The fill.
    pub(crate) fill: &'static str,
    /// The opacity of the fill.
    pub(crate) opacity: f64,
    /// The colour of the outline.
    pub(crate) line: &'static str,
}

impl NestedBox {
    /// Makes a box without contents.
    pub(crate) fn new(lines: Vec<String>, fill: &'static str, opacity: f64) -> NestedBox {
        NestedBox { lines, contents: Vec::new(), is_outer: false, fill, opacity, line: colors::LINE }
    }

    /// Returns the box with others in it.
    pub(crate) fn around(self, contents: Vec<NestedBox>) -> NestedBox {
        NestedBox { contents, is_outer: true, ..self }
    }

    fn form(&self, line: usize) -> TextForm {
        match line {
            0 if self.is_outer => TextForm::HEAD,
            0 => TextForm::BODY,
            _ => TextForm::SMALL,
        }
    }

    /// Returns the rows of the contents. A row is wider than `width` only if it has a single box.
    fn rows(&self, width: f64) -> Vec<BoxRow<'_>> {
        let mut rows: Vec<BoxRow<'_>> = Vec::new();
        let mut left = 0.0;
        for part in &self.contents {
            let (own, height) = part.size(width);
            match rows.last_mut() {
                Some(row) if own + GAP <= left => {
                    row.parts.push((part, own));
                    row.height = row.height.max(height);
                    left -= own + GAP;
                }
                _ => {
                    rows.push(BoxRow { parts: vec![(part, own)], height });
                    left = width - own;
                }
            }
        }
        rows
    }

    /// Returns the width and the height. The contents are wrapped at `width`.
    pub(crate) fn size(&self, width: f64) -> (f64, f64) {
        let texts = self.lines.iter().enumerate().map(|(i, line)| self.form(i).width(line));
        let mut widest = texts.fold(0.0, f64::max);
        let mut height = self.lines.len() as f64 * LINE_HEIGHT;
        for row in self.rows(width - 2.0 * GAP) {
            let own: f64 = row.parts.iter().map(|(_, own)| own + GAP).sum::<f64>() - GAP;
            widest = widest.max(own);
            height += row.height + GAP;
        }
        let padding = if self.contents.is_empty() { GAP } else { 1.5 * GAP };
        (widest + 2.0 * GAP, height + padding)
    }

    /// Draws the box with its upper left corner at `x` and `y`, at least `least` wide and high, and
    /// wraps the contents at `width`.
    pub(crate) fn draw(
        &self,
        canvas: &mut Canvas,
        (x, y): (f64, f64),
        width: f64,
        least: (f64, f64),
    ) -> Rect {
        let (own, height) = self.size(width);
        let frame = Rect::new(x, y, own.max(least.0), height.max(least.1));
        canvas.rectangle(frame, 4.0, self.fill, self.opacity, self.line);
        let mut at = y;
        for (i, line) in self.lines.iter().enumerate() {
            canvas.text(x + GAP, at + LINE_HEIGHT, self.form(i), line);
            at += LINE_HEIGHT;
        }
        at += GAP;
        for row in self.rows(width - 2.0 * GAP) {
            let mut left = x + GAP;
            for (part, own) in row.parts {
                part.draw(canvas, (left, at), width - 2.0 * GAP, (own, row.height));
                left += own + GAP;
            }
            at += row.height + GAP;
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> NestedBox {
        NestedBox::new(vec![name.into()], colors::ANY_NODE, 1.0)
    }

    #[test]
    fn contents_are_wrapped_and_the_box_covers_them() {
        let contents: Vec<NestedBox> = (0..6).map(|_| named("a device")).collect();
        let (one, height) = contents[0].size(100.0);
        let outer = named("outer").around(contents);
        let two_in_a_row = outer.size(2.0 * one + 4.0 * GAP);
        let all_in_a_row = outer.size(1000.0);
        assert!(two_in_a_row.0 < all_in_a_row.0 && two_in_a_row.1 > all_in_a_row.1);
        assert!((two_in_a_row.1 - all_in_a_row.1 - 2.0 * (height + GAP)).abs() < 0.1);
        let mut canvas = Canvas::new("boxes");
        let frame = outer.draw(&mut canvas, (0.0, 0.0), 1000.0, (0.0, 0.0));
        assert_eq!((frame.width, frame.height), all_in_a_row);
        assert_eq!(canvas.finish().matches("a device").count(), 6);
    }
}
