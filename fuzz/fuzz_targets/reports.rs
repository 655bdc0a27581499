//! Reports of agents, in lines that an engine forwards: a line is rejected, or is read as it was
//! written.

#![no_main]

use hostbuf_agent::report::Report;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

const KINDS: [&str; 6] = ["ready", "progress", "filling", "uncovered", "agreed", "failed"];
const TEXTS: [&str; 3] = ["host", "buffer", "message"];
const NUMBERS: [&str; 11] = [
    "agents",
    "done",
    "total",
    "address",
    "rounds",
    "microseconds",
    "ranks",
    "without",
    "attaching",
    "status",
    "rank",
];

/// Returns whether the line is a report.
fn check(line: &str) -> bool {
    let Some(report) = Report::parse(line) else { return false };
    let written = report.to_string();
    assert!(!written.contains('\n'), "{written:?} has two lines");
    assert_eq!(Report::parse(&written), Some(report));
    true
}

fuzz_target!(|text: &str| {
    check(text);
    // The same text as the values of all fields.
    let mut parts = text.split('\n').cycle();
    let mut next = || parts.next().expect("at least one part");
    let mut fields = Map::new();
    for name in TEXTS {
        fields.insert(name.into(), next().into());
    }
    for name in NUMBERS {
        // Small numbers as well, which all fields accept.
        let number = next().bytes().fold(0u64, |number, byte| number << 8 | u64::from(byte));
        fields.insert(name.into(), number.into());
    }
    fields.insert("ended".into(), next().is_empty().into());
    fields.insert("operands".into(), next().split(' ').collect::<Vec<_>>().into());
    for kind in KINDS {
        fields.insert("hostbuf".into(), kind.into());
        let is_report = check(&Value::Object(fields.clone()).to_string());
        let is_short = [("rounds", u64::from(u32::MAX)), ("status", u64::from(u8::MAX))]
            .into_iter()
            .all(|(name, limit)| fields[name].as_u64().is_some_and(|number| number <= limit));
        assert!(is_report || !is_short, "{fields:?} is no report");
    }
});
