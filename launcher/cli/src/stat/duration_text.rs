//! Times as text.

use std::time::Duration;

/// Formats a time with a unit: `17 µs`, `1.5 ms`, `2.50 s`.
pub(super) fn duration(time: Duration) -> String {
    match time.as_micros() {
        0 => "0".into(),
        n @ 1..1000 => format!("{n} µs"),
        n @ 1000..1_000_000 => format!("{:.1} ms", n as f64 / 1e3),
        n => format!("{:.2} s", n as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let text = |micros| duration(Duration::from_micros(micros));
        assert_eq!([text(0), text(17), text(1500), text(2_500_000)], ["0", "17 µs", "1.5 ms", "2.50 s"]);
    }
}
