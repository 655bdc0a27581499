//! The pools as tables for people.

use std::fmt::Write as _;
use std::time::Duration;

use hostbuf::Bytes;
use serde_json::Value;

use super::duration_text::duration;
use super::pools::{PoolReport, PoolReports};
use crate::columns::align;
use crate::printable::printable;

/// Returns the text about all pools, which is empty if there are none.
pub(super) fn text(reports: &PoolReports) -> String {
    let mut text: String = reports.pools.iter().map(pool).collect::<Vec<_>>().join("\n");
    if reports.of_others > 0 {
        let (count, pools) = (reports.of_others, if reports.of_others == 1 { "pool" } else { "pools" });
        writeln!(text, "{count} {pools} of other users not shown: a broker answers its own user only")
            .expect("to memory");
    }
    text
}

fn pool(report: &PoolReport) -> String {
    let at = if report.socket.is_empty() { String::new() } else { format!(" {}", printable(&report.socket)) };
    let status = match &report.status {
        Ok(status) => status,
        Err(why) => return format!("pool{at}\n  ! {}\n", printable(why)),
    };
    let mut text = format!(
        "pool{at}  broker {}  on {}: {} of {} used, {} for each client at most\n",
        status["pid"],
        printable(word(&status["host"])),
        bytes(&status["bytes"]),
        bytes(&status["limit"]),
        bytes(&status["per_client"]),
    );
    let unaccounted = list(&status["unaccounted"]);
    if !unaccounted.is_empty() {
        let process = |known: &Value| {
            format!(
                "process {} ({}) {}",
                known["pid"],
                printable(word(&known["name"])),
                bytes(&known["bytes"])
            )
        };
        let processes: Vec<String> = unaccounted.iter().map(process).collect();
        writeln!(
            text,
            "  ! the broker makes nothing before these processes have reported what they have of an earlier broker: \
             {}; continue or end them",
            processes.join(", ")
        )
        .expect("to memory");
    }
    if status["unclaimed_bytes"].as_u64().is_some_and(|unclaimed| unclaimed > 0) {
        let unclaimed = bytes(&status["unclaimed_bytes"]);
        writeln!(
            text,
            "  {unclaimed} of it were made by an earlier broker, and no client has reported them yet"
        )
        .expect("to memory");
    }
    if status["gpu_bytes"].as_u64().is_some_and(|used| used > 0) {
        let [used, limit, most] =
            ["gpu_bytes", "gpu_limit", "gpu_per_client"].map(|name| bytes(&status[name]));
        writeln!(text, "  GPU memory: {used} of {limit} used, {most} for each client at most")
            .expect("to memory");
    }
    let clients = list(&status["clients"]);
    if clients.is_empty() {
        text.push_str("  no clients\n");
    }
    text.push_str(&table(&["CLIENT", "PROCESS", "HAS MADE"], clients.iter().map(client)));
    let segments = list(&status["segments"]);
    let head = [
        "STREAM",
        "PRODUCER",
        "SIZE",
        "BLOCKS",
        "FREE",
        "WRITING",
        "PUBLISHED",
        "RETIRED",
        "FRAMES",
        "NO FREE BLOCK",
    ];
    text.push_str(&table(&head, segments.iter().map(segment)));
    let on_gpus = segments.iter().filter(|segment| segment["gpu"].is_string());
    text.push_str(&table(&["STREAM", "GPU", "MEMORY OF THE GPU"], on_gpus.map(gpu_memory)));
    let readers = segments
        .iter()
        .flat_map(|segment| list(&segment["readers"]).iter().map(move |found| reader(segment, found)));
    let head = ["STREAM", "READER", "HOLDS", "BLOCKS", "ACQUIRED", "TOO LATE", "P50", "P99", "MAX"];
    text.push_str(&table(&head, readers));
    text
}

/// Returns a table with a head, or nothing without rows.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut all = vec![head.iter().map(|&cell| cell.to_owned()).collect()];
    all.extend(rows);
    if all.len() == 1 { String::new() } else { align(&all) }
}

fn client(client: &Value) -> Vec<String> {
    let ending = if client["connected"] == false { " (ending)" } else { "" };
    let on_gpus = match client["gpu_bytes"].as_u64() {
        None | Some(0) => String::new(),
        Some(_) => format!(", and {} on GPUs", bytes(&client["gpu_bytes"])),
    };
    let made = bytes(&client["bytes"]) + &on_gpus;
    vec![word(&client["name"]).to_owned(), process(&client["pid"]) + ending, made]
}

fn gpu_memory(segment: &Value) -> Vec<String> {
    vec![stream(segment), word(&segment["gpu"]).to_owned(), bytes(&segment["gpu_bytes"])]
}

fn segment(segment: &Value) -> Vec<String> {
    let ended = if segment["producer"].is_null() { ", has ended" } else { "" };
    vec![
        stream(segment),
        format!("{}{ended}", word(&segment["producer_name"])),
        bytes(&segment["bytes"]),
        format!("{} x {}", segment["blocks"], bytes(&segment["block_bytes"])),
        segment["free"].to_string(),
        segment["writing"].to_string(),
        segment["published"].to_string(),
        segment["retired"].to_string(),
        segment["frames"].to_string(),
        segment["exhausted"].to_string(),
    ]
}

fn reader(segment: &Value, reader: &Value) -> Vec<String> {
    let held: Vec<String> = list(&reader["held_blocks"]).iter().map(Value::to_string).collect();
    let latency = &reader["latency"];
    let bound = |name: &str| match latency["samples"].as_u64() {
        None | Some(0) => "-".to_owned(),
        Some(_) => {
            latency[name].as_u64().map_or("over 17 s".to_owned(), |ns| duration(Duration::from_nanos(ns)))
        }
    };
    vec![
        stream(segment),
        format!("{} ({})", word(&reader["name"]), process(&reader["pid"])),
        format!("{} of {}", reader["holds"], segment["quota"]),
        if held.is_empty() { "-".to_owned() } else { held.join(" ") },
        reader["acquired"].to_string(),
        reader["gone"].to_string(),
        bound("p50_ns"),
        bound("p99_ns"),
        bound("max_ns"),
    ]
}

/// Returns the name of a segment's stream, or its number if it has none.
fn stream(segment: &Value) -> String {
    match word(&segment["stream"]) {
        "" => format!("segment {}", segment["segment"]),
        name => name.to_owned(),
    }
}

fn process(pid: &Value) -> String {
    match pid.as_i64() {
        None | Some(0) => "in another PID namespace".to_owned(),
        Some(pid) => pid.to_string(),
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn bytes(value: &Value) -> String {
    match value.as_u64() {
        None => "?".to_owned(),
        Some(u64::MAX) => "unlimited".to_owned(),
        Some(number) => Bytes(number).to_string(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(status: Value) -> String {
        let pools = vec![PoolReport { socket: "@p".into(), status: Ok(status) }];
        text(&PoolReports { pools, ..PoolReports::default() })
    }

    #[test]
    fn memory_of_gpus_is_shown_with_the_gpu_and_its_limits() {
        let status = json!({
            "pid": 4, "host": "h0", "bytes": 4096, "limit": 1u64 << 30, "per_client": 256 << 20,
            "gpu_bytes": 16 << 20, "gpu_limit": 1u64 << 30, "gpu_per_client": 256 << 20,
            "clients": [
                { "name": "camera", "pid": 5, "bytes": 4096, "gpu_bytes": 16 << 20, "connected": true },
            ],
            "unaccounted": [],
            "segments": [{
                "segment": 1, "stream": "left", "producer": 1, "producer_name": "camera (process 5)",
                "gpu": "GPU-10101010-1010-1010-1010-101010101010", "gpu_bytes": 16 << 20,
                "bytes": 4096, "blocks": 2, "block_bytes": 8 << 20, "quota": 1, "free": 1,
                "writing": 0, "published": 1, "retired": 0, "frames": 90, "exhausted": 3, "readers": [],
            }],
        });
        let text = of(status);
        let columns = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(columns).collect();
        for expected in [
            "GPU memory: 16 MiB of 1 GiB used, 256 MiB for each client at most",
            "camera 5 4 KiB, and 16 MiB on GPUs",
            "STREAM GPU MEMORY OF THE GPU",
            "left GPU-10101010-1010-1010-1010-101010101010 16 MiB",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected:?} is not in:\n{text}");
        }
    }

    #[test]
    fn a_pool_shows_who_holds_which_blocks() {
        let status = json!({
            "pid": 4, "host": "h0", "bytes": 33 << 20, "limit": 1u64 << 30, "per_client": 256 << 20,
            "clients": [{ "name": "camera", "pid": 5, "bytes": 33 << 20, "connected": true }],
            "unaccounted": [],
            "segments": [{
                "segment": 1, "stream": "left", "producer": 1, "producer_name": "camera (process 5)",
                "bytes": 33 << 20, "blocks": 4, "block_bytes": 8 << 20, "quota": 2, "free": 1,
                "writing": 1, "published": 1, "retired": 1, "frames": 90, "exhausted": 3,
                "readers": [{
                    "name": "viewer", "pid": 6, "holds": 2, "held_blocks": [0, 3], "acquired": 80, "gone": 10,
                    "latency": { "samples": 80, "p50_ns": 41_000, "p99_ns": 1_500_000, "max_ns": null },
                }],
            }],
        });
        let expected = "\
pool @p  broker 4  on h0: 33 MiB of 1 GiB used, 256 MiB for each client at most
  CLIENT  PROCESS  HAS MADE
  camera  5        33 MiB
  STREAM  PRODUCER            SIZE    BLOCKS     FREE  WRITING  PUBLISHED  RETIRED  FRAMES  NO FREE BLOCK
  left    camera (process 5)  33 MiB  4 x 8 MiB  1     1        1          1        90      3
  STREAM  READER      HOLDS   BLOCKS  ACQUIRED  TOO LATE  P50    P99     MAX
  left    viewer (6)  2 of 2  0 3     80        10        41 µs  1.5 ms  over 17 s
";
        assert_eq!(of(status), expected);
    }

    #[test]
    fn a_pool_without_clients_and_one_that_does_not_answer_take_a_line() {
        let status = json!({
            "pid": 4, "host": "h0", "bytes": 0, "limit": 1, "per_client": 1, "clients": [], "segments": [],
            "unclaimed_bytes": 8192, "unaccounted": [{ "pid": 7, "name": "cam\u{1b}", "bytes": 4096 }],
        });
        let text_of_empty = of(status);
        assert!(
            text_of_empty.contains(r"process 7 (cam\u{1b}) 4 KiB; continue or end them"),
            "{text_of_empty}"
        );
        assert!(text_of_empty.contains("\n  8 KiB of it were made by an earlier broker"), "{text_of_empty}");
        assert!(text_of_empty.ends_with("  no clients\n"), "{text_of_empty}");
        let silent = PoolReport { socket: "@p".into(), status: Err("it has not answered".into()) };
        let reports = PoolReports { pools: vec![silent], of_others: 2, lacks_selected: false };
        assert_eq!(
            text(&reports),
            "pool @p\n  ! it has not answered\n2 pools of other users not shown: a broker answers its own user only\n"
        );
    }
}
