//! The rings of this host, which their counters describe.

use std::time::Duration;

use hostbuf::Bytes;
use hostbuf_staging::RingStatus;
use serde_json::{Value, json};

use crate::columns::align;
use crate::printable::printable;

/// Returns a table of rings, or nothing if there are none.
pub(super) fn text(rings: &[RingStatus]) -> String {
    if rings.is_empty() {
        return String::new();
    }
    let head =
        ["PROCESS", "RING", "SLOTS", "THREADS", "TRANSFERS", "TO IT", "FROM IT", "RATE", "BOUND BY", "WAITS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(rings.iter().map(row));
    format!("rings\n{}", align(&rows))
}

fn row(ring: &RingStatus) -> Vec<String> {
    let counters = &ring.counters;
    vec![
        format!("{} ({})", ring.process, printable(&ring.program)),
        printable(&ring.device),
        format!("{} x {}", ring.slots, Bytes(ring.slot_bytes)),
        counters.workers.to_string(),
        counters.transfers.to_string(),
        Bytes(counters.to_device).to_string(),
        Bytes(counters.from_device).to_string(),
        format!("{:.2} GB/s", counters.rate() / 1e9),
        counters.bound().to_string(),
        waits(ring),
    ]
}

/// Returns the times that threads have spent, by cause.
fn waits(ring: &RingStatus) -> String {
    let counters = &ring.counters;
    let causes = [
        ("reads", counters.reading),
        ("writes", counters.writing),
        ("device", counters.waiting_for_device),
        ("slots", counters.waiting_for_slot),
    ];
    let spent = causes.iter().filter(|(_, time)| *time > Duration::ZERO);
    spent.map(|(cause, time)| format!("{cause} {:.1} s", time.as_secs_f64())).collect::<Vec<_>>().join(", ")
}

/// Returns the rings as JSON.
pub(super) fn json(rings: &[RingStatus]) -> Value {
    let one = |ring: &RingStatus| {
        let counters = &ring.counters;
        json!({
            "process": ring.process,
            "program": ring.program,
            "device": ring.device,
            "slots": ring.slots,
            "slot_bytes": ring.slot_bytes,
            "piece_bytes": ring.piece_bytes,
            "threads": counters.workers,
            "transfers": counters.transfers,
            "copies": counters.copies,
            "to_device_bytes": counters.to_device,
            "from_device_bytes": counters.from_device,
            "active_s": counters.active.as_secs_f64(),
            "copying_s": counters.copying.as_secs_f64(),
            "bytes_per_s": counters.rate(),
            "bound": counters.bound().name(),
            "thread_seconds": {
                "reading": counters.reading.as_secs_f64(),
                "writing": counters.writing.as_secs_f64(),
                "waiting_for_device": counters.waiting_for_device.as_secs_f64(),
                "waiting_for_slot": counters.waiting_for_slot.as_secs_f64(),
            },
        })
    };
    rings.iter().map(one).collect()
}
