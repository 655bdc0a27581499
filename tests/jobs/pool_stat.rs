//! `hostbuf stat` and `hostbuf doctor` with pools.

use std::process::Command;
use std::time::Duration;

use hostbuf_pool::{ArrayLayout, ElementType};
use hostbuf_tests::{CommandOutput, hostbuf};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::running_broker::{RunningBroker, small_blocks, socket_name};

fn stat(pool: &str, arguments: &[&str]) -> CommandOutput {
    CommandOutput::of(Command::new(hostbuf()).arg("stat").args(arguments).env("HOSTBUF_POOL", pool)).ok()
}

/// Returns what stat prints if the selected pool has not answered, or does not exist.
fn stat_without(pool: &str) -> String {
    let mut command = Command::new(hostbuf());
    let outcome = CommandOutput::of(command.arg("stat").env("HOSTBUF_POOL", pool));
    assert_eq!((outcome.status, outcome.stderr.as_str()), (1, ""), "{outcome:?}");
    outcome.stdout
}

fn stat_json(broker: &RunningBroker) -> Value {
    let text = stat(&broker.variable(), &["--json"]).stdout;
    let mut report: Value = serde_json::from_str(&text).expect("JSON");
    report["pools"][0].take()
}

#[test]
fn the_report_shows_clients_segments_and_holds() {
    let broker = RunningBroker::start("stat", &["--limit", "64M"]);
    let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer\u{1b}[2J"));
    let producer = camera.producer(&small_blocks("left")).expect("there is memory");
    let publish = || {
        let block = producer.take_timeout(Duration::from_secs(10)).expect("a free block");
        let layout = ArrayLayout::contiguous(ElementType::UInt8, &[1 << 20]).expect("a layout");
        block.publish(layout).expect("it fits")
    };
    let held = viewer.acquire(&publish()).expect("it is published");
    let tokens: Vec<_> = (0..8).map(|_| publish()).collect();
    assert!(viewer.acquire(&tokens[0]).is_err());

    let pool = stat_json(&broker);
    let own = std::process::id();
    assert_eq!(pool["socket"], json!(broker.variable()));
    assert_eq!((&pool["pid"], &pool["limit_bytes"]), (&json!(broker.pid()), &json!(64 << 20)));
    let clients = pool["clients"].as_array().expect("a list");
    let names: Vec<_> = clients.iter().map(|client| (&client["name"], &client["pid"])).collect();
    assert_eq!(names, [(&json!("camera"), &json!(own)), (&json!("viewer\u{1b}[2J"), &json!(own))]);
    let segment = &pool["segments"][0];
    assert_eq!(
        (&segment["stream"], &segment["blocks"], &segment["frames"]),
        (&json!("left"), &json!(4), &json!(9))
    );
    let reader = &segment["readers"][0];
    let figures = ["holds", "acquired", "gone"].map(|name| reader[name].as_u64());
    assert_eq!(figures, [Some(1), Some(1), Some(1)], "{reader}");
    assert_eq!(reader["held_blocks"].as_array().map(Vec::len), Some(1));
    assert_eq!(reader["latency"]["samples"], 1);
    assert!(reader["latency"]["p50_ns"].as_u64().is_some_and(|ns| ns > 0), "{reader}");

    let text = stat(&broker.variable(), &[]).stdout;
    let head = format!("pool {}  broker {}  on ", broker.variable(), broker.pid());
    assert!(
        text.contains(&head) && text.contains(" of 64 MiB used, 64 MiB for each client at most\n"),
        "{text}"
    );
    for head in ["CLIENT", "STREAM  PRODUCER", "STREAM  READER"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(head)), "{head}: {text}");
    }
    // A name cannot control the terminal.
    assert!(text.contains(r"viewer\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    assert!(!text.contains("hostbuf stat"), "{text}");
    drop(held);
    assert_eq!(stat_json(&broker)["segments"][0]["readers"][0]["holds"], 0);
}

#[test]
fn a_missing_and_a_stopped_broker_take_one_line() {
    let missing = format!("@{}", socket_name("missing"));
    let text = stat_without(&missing);
    assert!(text.contains(&format!("pool {missing}\n  ! there is no broker at {missing}")), "{text}");
    let broker = RunningBroker::start("stopped", &[]);
    broker.stop();
    let text = stat_without(&broker.variable());
    broker.signal(Signal::SIGCONT);
    assert!(text.contains("has not answered for 2 s"), "{text}");
    let invalid = stat_without("sometimes");
    assert!(invalid.contains("invalid pool \"sometimes\""), "{invalid}");
}

/// Returns the finding of `hostbuf doctor` about pools with this name.
fn finding(command: &mut Command, name: &str) -> Value {
    let report: Value = serde_json::from_str(&CommandOutput::of(command).ok().stdout).expect("JSON");
    let checks = report["checks"].as_array().expect("a list");
    let found = checks.iter().find(|check| check["group"] == "pool" && check["name"] == name);
    found.unwrap_or_else(|| panic!("no finding {name}: {report:#}")).clone()
}

#[test]
fn the_doctor_finds_the_broker() {
    let broker = RunningBroker::start("doctor", &[]);
    let look = |pool: &str| {
        let mut command = Command::new(hostbuf());
        finding(command.args(["doctor", "--json"]).env("HOSTBUF_POOL", pool), "broker")
    };
    let found = look(&broker.variable());
    assert_eq!((&found["mark"], &found["values"]["pid"]), (&json!("ok"), &json!(broker.pid())));
    let missing = format!("@{}", socket_name("doctor-none"));
    let none = look(&missing);
    assert_eq!(
        (&none["mark"], &none["mends"][0]),
        (&json!("note"), &json!(format!("hostbuf broker --name {}", &missing[1..])))
    );
    assert_eq!(look("sometimes")["mark"], "lacks");
}

#[test]
fn the_doctor_and_the_broker_agree_on_the_descriptors() {
    let script = "ulimit -n 100; exec \"$0\" doctor --json";
    let found = finding(Command::new("bash").args(["-c", script]).arg(hostbuf()), "descriptors of a broker");
    assert_eq!((&found["mark"], &found["values"]["segments"]), (&json!("lacks"), &json!(3)));
    // The soft limit does not matter: a broker raises it.
    let name = socket_name("descriptors");
    let script = "ulimit -Sn 40; exec \"$0\" broker --name \"$1\"";
    let mut command = Command::new("bash");
    let broker = RunningBroker::spawn(name.clone(), command.args(["-c", script]).arg(hostbuf()).arg(name));
    let client = broker.connect("camera");
    let options = small_blocks("camera");
    let producers: Vec<_> =
        (0..10).map(|_| client.producer(&options).expect("descriptors are left")).collect();
    assert_eq!(stat_json(&broker)["segments"].as_array().map(Vec::len), Some(producers.len()));
}
