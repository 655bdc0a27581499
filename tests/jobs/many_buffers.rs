//! Jobs with many buffers, and the environment variables with the address and size of each.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use hostbuf_protocol::limits::MAX_BUFFERS;
use hostbuf_tests::{
    CommandOutput, Scratch, can_simulate, eventually, fixture, flavours, hostbuf, simulated,
};

use crate::other_user::OtherUser;
use crate::running_job::{ARRIVAL, probe};

/// Returns the options for `count` lazy buffers named `b-0`, `b-1`, ..., of 1, 2, ... pages.
fn options(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("--buffer=name=b-{i},size={},lazy", (i + 1) * 4096 - 1)).collect()
}

fn run(count: usize, ranks: &str, program: &[&str]) -> CommandOutput {
    let mut command = Command::new("timeout");
    command.args(["60"]).arg(hostbuf()).args(["run", "--launcher", "local", "-n", ranks]);
    CommandOutput::of(command.args(options(count)).arg("--").args(program))
}

/// Returns the variables that a program printed, one in a line.
fn variables(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter(|line| line.starts_with("HOSTBUF_")).filter_map(|line| line.split_once('=')).collect()
}

/// Script of a rank that writes its variables to a file of its own in the folder `$0`: in a pipe
/// that ranks share, the lines of an environment larger than `PIPE_BUF` may be cut by those of
/// another rank.
const OWN_FILE: &str = r#"env > "$(mktemp -p "$0")""#;

/// Returns what the processes wrote with [`OWN_FILE`] to `folder`, one text for each.
fn environments(folder: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(&folder.0).expect("the folder is there");
    entries.map(|entry| std::fs::read_to_string(entry.expect("an entry").path()).expect("UTF-8")).collect()
}

fn address(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").expect("it begins with 0x"), 16)
        .expect("a hexadecimal number")
}

/// Asserts that the variables state the addresses and sizes of `count` buffers of [`options`].
#[track_caller]
fn are_complete(variables: &BTreeMap<&str, &str>, count: usize) {
    let mut end = 0;
    for i in 0..count {
        let at = address(variables[&format!("HOSTBUF_ADDRESS_b_{i}")[..]]);
        let size: u64 = variables[&format!("HOSTBUF_SIZE_b_{i}")[..]].parse().expect("a number");
        assert!(at > end && at.is_multiple_of(2 << 20), "buffer {i} at {at:#x}");
        assert!(size >= (i as u64 + 1) * 4096 && size.is_multiple_of(4096), "buffer {i} of {size} bytes");
        end = at + size;
    }
    assert_eq!(variables["HOSTBUF_ADDRESS"], variables["HOSTBUF_ADDRESS_b_0"]);
    assert_eq!(variables["HOSTBUF_SIZE"], variables["HOSTBUF_SIZE_b_0"]);
    let named = variables.keys().filter(|name| name.contains("_b_")).count();
    assert_eq!(named, 2 * count, "nothing else");
}

#[test]
fn every_buffer_has_its_variables_in_every_rank_and_its_children() {
    for count in [1, 17, MAX_BUFFERS] {
        let folder = Scratch::new(&format!("variables-of-{count}-buffers"));
        let script = format!("{OWN_FILE}; env sh -c '{OWN_FILE}' \"$0\"");
        let place = folder.0.to_str().expect("UTF-8");
        let outcome = run(count, "2", &["sh", "-c", &script, place]).ok();
        assert_eq!(outcome.said(), [""; 0]);
        let images = environments(&folder);
        assert_eq!(images.len(), 4);
        for image in &images {
            are_complete(&variables(image), count);
            assert_eq!(variables(image)["HOSTBUF_ADDRESS"], variables(&images[0])["HOSTBUF_ADDRESS"]);
        }
    }
}

#[test]
fn the_library_finds_as_many_buffers_as_the_variables() {
    let outcome = run(MAX_BUFFERS, "2", &[&probe(), "names"]).ok();
    let lines = outcome.lines("names ");
    assert_eq!(lines.len(), 2, "{outcome:?}");
    assert!(
        lines.iter().all(|line| line == &format!("{MAX_BUFFERS} all as the variables state")),
        "{lines:?}"
    );
}

#[test]
fn a_limit_of_open_files_below_the_number_of_buffers_is_reported() {
    let script = format!(
        "exec {} run --launcher local -n 1 {} -- sh -c 'ulimit -n 64; exec env true'",
        hostbuf().display(),
        options(100).join(" ")
    );
    let outcome = CommandOutput::of(Command::new("timeout").args(["60", "sh", "-c", &script]));
    assert_ne!(outcome.status, 0, "{outcome:?}");
    let words = ["descriptors", "ulimit -n"];
    let line = outcome.said().into_iter().find(|line| words.iter().all(|word| line.contains(word)));
    assert!(line.is_some(), "{outcome:?}");
}

#[test]
fn ranks_on_two_hosts_have_the_variables_under_every_mpi() {
    if !can_simulate() {
        return;
    }
    let options = options(17).join(" ");
    for flavour in flavours() {
        let folder = Scratch::new("variables-on-two-hosts");
        let run = format!(
            "$HOSTBUF run -n 4 --mpirun $MPIRUN --host h0:2,h1:2 {options} -- sh -c '{OWN_FILE}' '{}'",
            folder.0.display()
        );
        let outcome = simulated(2, &flavour, &run).ok();
        let images = environments(&folder);
        assert_eq!(images.len(), 4, "{flavour}: {outcome:?}");
        for image in &images {
            are_complete(&variables(image), 17);
        }
    }
}

#[test]
fn descriptors_on_their_way_delay_the_ranks_and_fail_none() {
    // The kernel counts descriptors that are in sockets against the user's limit of open files, but
    // not those of root.
    let Some(other) = OtherUser::new("the limit of descriptors on their way") else { return };
    let in_flight = fixture("cc", "in_flight.c", &[]).expect("a C compiler is there");
    let (in_flight, program) = (other.program(in_flight.to_str().expect("UTF-8")), other.program(&probe()));
    let full = other.own_folder("state").join("full");
    let mut sender = other.command(&in_flight);
    let mut sender = sender.arg("200").arg(&full).stdin(Stdio::piped()).spawn().expect("the program starts");
    eventually("descriptors are on their way", ARRIVAL, || full.exists());
    let script = format!(
        "ulimit -n 100; exec {} run --launcher local -n 4 {} -- {program} names",
        other.hostbuf().display(),
        options(20).join(" ")
    );
    let mut job = other.command("timeout");
    job.args(["60", "sh", "-c", &script]).env("HOSTBUF_LOG", "hostbuf_agent=debug");
    let mut job = job
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut lines = BufReader::new(job.stderr.take().expect("it is a pipe")).lines();
    let waits = lines.any(|line| line.is_ok_and(|line| line.contains("the packet waits")));
    drop(sender.stdin.take());
    let rest: Vec<String> = lines.map_while(Result::ok).filter(|line| line.contains("hostbuf: ")).collect();
    let output = job.wait_with_output().expect("it ends");
    let _ = sender.wait();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(waits && output.status.success(), "{:?} {text} {rest:?}", output.status);
    assert_eq!(text.matches("names 20 all").count(), 4, "{text}");
}
