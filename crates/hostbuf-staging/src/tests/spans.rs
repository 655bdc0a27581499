//! The spans of rings and transfers.

use std::sync::Arc;

use tracing::{Level, info_span};
use tracing_subscriber::fmt::format::FmtSpan;

use super::SpanLog;
use super::byte_source::{ByteSource, ReadFault, SLOT, ring, target};
use crate::SimulatedDevice;

/// Returns the spans that close while `run` runs, with their fields.
fn spans_of(level: Level, run: impl FnOnce()) -> Vec<String> {
    let log = SpanLog::default();
    tracing::subscriber::with_default(log.subscriber(level, FmtSpan::CLOSE), run);
    log.lines()
}

fn transfers() {
    let _load = info_span!("step", number = 7).entered();
    let ring = ring(SimulatedDevice::new(), 3, 2);
    let (_memory, to) = target(3 * SLOT);
    ring.read(Arc::new(ByteSource::new(vec![1; 3 * SLOT])), 0, to.clone()).wait().unwrap();
    let broken = ByteSource::new(vec![1; 3 * SLOT]).fault(2, ReadFault::Fail);
    ring.read(Arc::new(broken), 0, to).wait().unwrap_err();
}

#[test]
fn a_span_tells_what_a_transfer_moves_and_how_it_ends() {
    let spans = spans_of(Level::DEBUG, transfers);
    let of = |name: &str| -> Vec<&String> {
        spans.iter().filter(|line| line.contains(&format!("step{{number=7}}:{name}{{"))).collect()
    };
    let rings = of("ring");
    assert!(rings.len() == 1 && rings[0].contains("slots=3 slot_bytes=65536 workers=2"), "{spans:?}");
    let transfers = of("transfer");
    assert_eq!(transfers.len(), 2, "{spans:?}");
    let fields = r#"verb="read" name=bytes bytes=196608"#;
    assert!(transfers.iter().all(|line| line.contains(fields) && line.contains("close")), "{spans:?}");
    let with = |part| transfers.iter().filter(|line| line.contains(part)).count();
    assert_eq!((with("landed=196608"), with("the disk is broken")), (1, 1), "{spans:?}");
}

#[test]
fn transfers_are_no_spans_above_the_level_of_debugging() {
    let spans = spans_of(Level::INFO, transfers);
    assert!(spans.len() == 1 && spans[0].contains("step{number=7}"), "{spans:?}");
}
