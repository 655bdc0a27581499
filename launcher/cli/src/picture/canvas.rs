//! A picture that is being drawn.

use svg::node::element::{Definitions, Line, Pattern, Rectangle, Style, Text, Title};
use svg::{Document, Node};

use super::colors;
use crate::printable::printable;

/// The height of a line of text in pixels.
pub(crate) const LINE_HEIGHT: f64 = 16.0;
/// The margin of a picture in pixels.
pub(crate) const MARGIN: f64 = 16.0;

/// The style of all texts. Every system has one of these fonts, and their widths are similar.
const STYLE: &str = "text { font-family: Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif; }";

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rect {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Rect {
    /// Makes a rectangle.
    pub(crate) fn new(x: f64, y: f64, width: f64, height: f64) -> Rect {
        Rect { x, y, width, height }
    }

    /// Returns the right edge.
    pub(crate) fn right(&self) -> f64 {
        self.x + self.width
    }

    /// Returns the lower edge.
    pub(crate) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// The form of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextForm {
    /// The size in pixels.
    pub(crate) size: f64,
    /// True for bold letters.
    pub(crate) bold: bool,
    /// The colour.
    pub(crate) color: &'static str,
    /// The `text-anchor` of SVG: the given point is at the `start` or in the `middle` of the text.
    pub(crate) anchor: &'static str,
}

impl TextForm {
    /// The form of most texts.
    pub(crate) const BODY: TextForm =
        TextForm { size: 12.0, bold: false, color: colors::TEXT, anchor: "start" };
    /// The form of remarks.
    pub(crate) const SMALL: TextForm = TextForm { size: 10.5, color: colors::FAINT, ..TextForm::BODY };
    /// The form of headings.
    pub(crate) const HEAD: TextForm = TextForm { bold: true, ..TextForm::BODY };
    /// The form of the title.
    pub(crate) const TITLE: TextForm = TextForm { size: 15.0, ..TextForm::HEAD };

    /// Returns the form with the point in the middle.
    pub(crate) fn middle(self) -> TextForm {
        TextForm { anchor: "middle", ..self }
    }

    /// Returns the approximate width of a text in pixels: fonts differ.
    pub(crate) fn width(&self, text: &str) -> f64 {
        // The letters of DejaVu Sans are the widest ones of these fonts.
        let letter = |c: char| match c {
            'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | ' ' | 'I' => 0.34,
            't' | 'f' | 'r' | '(' | ')' | '-' => 0.40,
            'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.96,
            'A'..='Z' => 0.70,
            _ => 0.63,
        };
        let widths: f64 = text.chars().map(letter).sum();
        widths * self.size * if self.bold { 1.12 } else { 1.0 }
    }

    /// Returns a text that is not wider than `width`, cut if necessary.
    pub(crate) fn fitting(&self, text: &str, width: f64) -> String {
        if self.width(text) <= width {
            return text.to_owned();
        }
        let mut cut: String = text.to_owned();
        while !cut.is_empty() && self.width(&cut) + self.width("…") > width {
            cut.pop();
        }
        if cut.is_empty() { cut } else { cut + "…" }
    }
}

/// A picture that is being drawn.
pub(crate) struct Canvas {
    drawn: Vec<Box<dyn Node>>,
    definitions: Definitions,
    stripes: Vec<Vec<&'static str>>,
    width: f64,
    height: f64,
}

impl Canvas {
    /// Makes an empty picture. `title` is its accessible name.
    pub(crate) fn new(title: &str) -> Canvas {
        let drawn: Vec<Box<dyn Node>> = vec![Title::new(printable(title)).into(), Style::new(STYLE).into()];
        Canvas { drawn, definitions: Definitions::new(), stripes: Vec::new(), width: 0.0, height: 0.0 }
    }

    fn cover(&mut self, right: f64, bottom: f64) {
        self.width = self.width.max(right);
        self.height = self.height.max(bottom);
    }

    /// Draws a rectangle with round corners of `radius`.
    pub(crate) fn rectangle(&mut self, frame: Rect, radius: f64, fill: &str, opacity: f64, line: &str) {
        self.cover(frame.right(), frame.bottom());
        let rectangle = Rectangle::new()
            .set("x", pixels(frame.x))
            .set("y", pixels(frame.y))
            .set("width", pixels(frame.width.max(0.0)))
            .set("height", pixels(frame.height.max(0.0)))
            .set("rx", pixels(radius))
            .set("fill", fill)
            .set("fill-opacity", opacity)
            .set("stroke", line)
            .set("stroke-width", 1);
        self.add(rectangle);
    }

    /// Draws a line.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), color: &str) {
        self.cover(from.0.max(to.0), from.1.max(to.1));
        let line = Line::new()
            .set("x1", pixels(from.0))
            .set("y1", pixels(from.1))
            .set("x2", pixels(to.0))
            .set("y2", pixels(to.1))
            .set("stroke", color);
        self.add(line);
    }

    /// Writes a text whose base line is at `y`.
    pub(crate) fn text(&mut self, x: f64, y: f64, form: TextForm, text: &str) {
        let text = printable(text);
        let width = form.width(&text);
        let right = match form.anchor {
            "middle" => x + width / 2.0,
            _ => x + width,
        };
        self.cover(right, y + form.size * 0.3);
        let weight = if form.bold { "bold" } else { "normal" };
        let text = Text::new(text)
            .set("x", pixels(x))
            .set("y", pixels(y))
            .set("font-size", form.size)
            .set("font-weight", weight)
            .set("fill", form.color)
            .set("text-anchor", form.anchor);
        self.add(text);
    }

    /// Returns a fill with stripes of these colours in turn.
    pub(crate) fn stripes(&mut self, colors: &[&'static str]) -> String {
        if let [one] = colors {
            return (*one).to_owned();
        }
        let number = self.stripes.iter().position(|known| known == colors).unwrap_or_else(|| {
            let width = 7.0;
            let mut pattern = Pattern::new()
                .set("id", format!("stripes{}", self.stripes.len()))
                .set("width", width * colors.len() as f64)
                .set("height", 10)
                .set("patternUnits", "userSpaceOnUse");
            for (i, color) in colors.iter().enumerate() {
                let stripe = Rectangle::new()
                    .set("x", pixels(width * i as f64))
                    .set("width", pixels(width))
                    .set("height", 10)
                    .set("fill", *color);
                pattern = pattern.add(stripe);
            }
            let definitions = std::mem::replace(&mut self.definitions, Definitions::new());
            self.definitions = definitions.add(pattern);
            self.stripes.push(colors.to_vec());
            self.stripes.len() - 1
        });
        format!("url(#stripes{number})")
    }

    fn add(&mut self, node: impl Into<Box<dyn Node>>) {
        self.drawn.push(node.into());
    }

    /// Returns the picture as SVG.
    pub(crate) fn finish(self) -> String {
        let (width, height) = ((self.width + MARGIN).ceil(), (self.height + MARGIN).ceil());
        let paper = Rectangle::new().set("width", "100%").set("height", "100%").set("fill", colors::PAPER);
        let frame = Document::new()
            .set("viewBox", (0, 0, width as u32, height as u32))
            .set("width", width)
            .set("height", height)
            .add(self.definitions)
            .add(paper);
        let document = self.drawn.into_iter().fold(frame, Document::add);
        format!("{document}\n")
    }
}

/// Rounds a length to one decimal place.
fn pixels(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_covers_what_is_drawn_and_escapes_texts() {
        let mut canvas = Canvas::new("a <host>");
        canvas.rectangle(Rect::new(10.0, 20.0, 300.0, 30.0), 2.0, colors::ANY_NODE, 1.0, colors::LINE);
        canvas.text(10.0, 80.0, TextForm::BODY, "a & b <c> \u{1b}[2J");
        let two = canvas.stripes(&["#0072b2", "#e69f00"]);
        assert_eq!(canvas.stripes(&["#0072b2", "#e69f00"]), two);
        assert_eq!(canvas.stripes(&["#0072b2"]), "#0072b2");
        let text = canvas.finish();
        assert!(text.contains("viewBox=\"0 0 326 100\""), "{text}");
        assert!(text.contains("a &amp; b &lt;c&gt;") && !text.contains('\u{1b}'), "{text}");
        assert_eq!(text.matches("<pattern").count(), 1);
        assert!(text.contains("<title>a &lt;host&gt;</title>"), "{text}");
    }

    #[test]
    fn texts_are_cut_to_a_width() {
        let form = TextForm::BODY;
        assert_eq!(form.fitting("short", 100.0), "short");
        let cut = form.fitting("a text that is much too long", 60.0);
        assert!(cut.ends_with('…') && form.width(&cut) <= 60.0, "{cut}");
        assert_eq!(form.fitting("x", 1.0), "");
    }
}
