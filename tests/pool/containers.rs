//! Pools between containers with little memory that they may lock and a small `/dev/shm`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_pool::{Pool, PoolMode, PoolOptions};
use hostbuf_tests::{CommandOutput, Scratch, eventually, have, hostbuf, skip};

use crate::contained_process::{ContainedProcess, bubblewrap};

/// The blocks of the producer, and those among them that a reader can hold: one is written.
const BLOCKS: usize = 5;
/// The frames that are passed before the reader is killed.
const FRAMES: u64 = 100;

/// A broker with a socket at a path, in a process of its own.
struct PathBroker {
    folder: Scratch,
    child: Child,
}

impl PathBroker {
    fn start(folder: Scratch) -> PathBroker {
        let mut command = Command::new(hostbuf());
        let name = format!("hostbuf-test-containers-{}", std::process::id());
        command.args(["broker", "--name", &name, "--path", &folder.path("pool.socket")]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the broker starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a text");
        assert!(line.contains("listening"), "{line}");
        PathBroker { folder, child }
    }

    /// Returns the numbers of blocks that each reader holds.
    fn holds(&self, pool: &Pool) -> Vec<u64> {
        let status = pool.status().expect("the broker answers");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let readers = status["segments"][0]["readers"].as_array().expect("a list");
        readers.iter().map(|reader| reader["holds"].as_u64().expect("a number")).collect()
    }
}

impl Drop for PathBroker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn frames_pass_between_containers_and_a_killed_reader_keeps_none() {
    let folder = Scratch::new("pool-containers");
    if !have("bwrap") {
        return;
    }
    let broker = PathBroker::start(folder);
    let outcome = CommandOutput::of(bubblewrap(&broker.folder.0).arg("true"));
    if outcome.status != 0 {
        skip(&format!("bwrap: {}", outcome.stderr.lines().next().unwrap_or("")));
        return;
    }
    let path = broker.folder.path("pool.socket");
    let pool = Pool::connect(PoolOptions::new("watcher").mode(PoolMode::Required).path(path));
    let pool = pool.expect("the broker listens");
    let mut producer = ContainedProcess::start(&broker.folder.0, "write", 1000);
    let mut reader = ContainedProcess::start(&broker.folder.0, "read", 2);
    let own = std::fs::read_link("/proc/self/ns/pid").expect("/proc is mounted");
    let (theirs, others) = (producer.namespaces.split(','), reader.namespaces.split(','));
    assert!(
        theirs.zip(others).all(|(one, other)| one != other),
        "{} {}",
        producer.namespaces,
        reader.namespaces
    );
    assert!(!producer.namespaces.contains(&*own.to_string_lossy()));
    let mut number = 0;
    let mut pass = |reader: &mut ContainedProcess| {
        let token = producer.next_line();
        reader.send(&token);
        assert_eq!(reader.next_line(), format!("{number} 0"));
        producer.send("next");
        number += 1;
    };
    for _ in 0..FRAMES {
        pass(&mut reader);
    }
    // The next reader holds all blocks that have been published.
    reader.kill();
    let mut greedy = ContainedProcess::start(&broker.folder.0, "read", 100);
    for _ in 0..BLOCKS {
        pass(&mut greedy);
    }
    let all_held = || broker.holds(&pool) == [BLOCKS as u64];
    eventually("the reader holds all blocks", Duration::from_secs(30), all_held);
    // The producer waits for a block, which it gets when the reader is dead.
    let begun = Instant::now();
    greedy.kill();
    eventually("the blocks are back", Duration::from_secs(30), || {
        broker.holds(&pool).iter().all(|&held| held == 0)
    });
    let time = begun.elapsed();
    let mut last = ContainedProcess::start(&broker.folder.0, "read", 1);
    for _ in 0..FRAMES {
        pass(&mut last);
    }
    println!("the blocks of a killed reader in a container were back after {time:?}");
}
