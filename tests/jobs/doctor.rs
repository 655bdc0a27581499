//! The limits that `hostbuf doctor` and the documentation name.

use std::fs;
use std::process::Command;

use hostbuf_tests::{CommandOutput, hostbuf, root};

#[test]
fn the_descriptor_limit_agrees_with_the_agent_and_the_documentation() {
    let with = |limit: &str| {
        let script = format!("ulimit -n {limit}; exec \"$0\" doctor");
        let outcome = CommandOutput::of(Command::new("bash").args(["-c", &script]).arg(hostbuf()));
        let from = outcome.stdout.find("descriptors (ulimit -n)").expect("the doctor tells of them");
        let begin = outcome.stdout[..from].rfind('\n').map_or(0, |at| at + 1);
        // The output is wrapped.
        let text = outcome.stdout[begin..].split_whitespace().collect::<Vec<_>>().join(" ");
        text.chars().take(400).collect::<String>()
    };
    let few = with("400");
    assert!(few.contains("two for each rank of its host") && few.contains("enough for 168 ranks"), "{few}");
    assert!(few.starts_with("lacks"), "{few}");
    // The agent raises its own limit, so only the hard one counts.
    let hard = with("4096; ulimit -Sn 100");
    assert!(hard.contains("raises to 4096") && hard.contains("enough for 2016 ranks"), "{hard}");
    assert!(hard.starts_with("ok"), "{hard}");
    for page in ["docs/jobs.md", "docs/failures.md"] {
        let text = fs::read_to_string(root().join(page)).expect("the file exists").replace('\n', " ");
        assert!(text.contains("needs two descriptors for each rank"), "{page}");
    }
}

#[test]
fn the_doctor_checks_the_placement_of_a_buffer() {
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(hostbuf());
        let outcome = CommandOutput::of(command.arg("doctor").args(arguments));
        (outcome.status, outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" "), outcome.stderr)
    };
    let (status, text, _) = doctor(&["--size", "4M", "--numa", "interleave"]);
    assert!(status == 0 && text.contains("ok --numa possible now on pages "), "{text}");
    // A buffer may consist of its sections.
    let (status, text, _) = doctor(&["--section", "name=a,size=4M,numa=interleave"]);
    assert!(status == 0 && text.contains("ok --numa possible now on pages "), "{text}");
    let (status, text, _) = doctor(&["--size", "8M", "--section", "name=a,size=4M,numa=interleave"]);
    assert!(status == 0 && text.contains(", the rest has no placement"), "{text}");
    let (status, text, _) = doctor(&["--size", "4M", "--section", "name=a,size=1M,numa=1023"]);
    assert!(status == 1 && text.contains("lacks --numa cannot place section \"a\" on node 1023: "), "{text}");
    let (status, _, said) = doctor(&["--numa", "0"]);
    assert_eq!((status, said.as_str()), (2, "hostbuf doctor: --numa requires --size or --section\n"));
}
