//! A figure and its bar.

/// A figure and its bar.
#[derive(Clone, Copy, Debug, PartialEq)]
// Exhaustive: a comparison, and nothing else.
pub enum FigureBar {
    /// The figure shall be at least this.
    AtLeast(f64),
    /// The figure shall be at most this.
    AtMost(f64),
}

impl FigureBar {
    /// Prints a row with the figure and the bar. Returns whether the bar is met.
    pub fn print(self, text: &str, figure: f64) -> bool {
        let (met, sign, bar) = match self {
            FigureBar::AtLeast(bar) => (figure >= bar, ">=", bar),
            FigureBar::AtMost(bar) => (figure <= bar, "<=", bar),
        };
        println!("{text:56} {figure:8.2}  {sign} {bar} {}", if met { "met" } else { "MISSED" });
        met
    }
}
