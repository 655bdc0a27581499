//! The other process of a test of blocks on the GPU.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The variable with the operands of the other process.
pub(super) const OPERANDS: &str = "HOSTBUF_TEST_POOL_BLOCKS";

/// The other process of a test.
pub(super) struct BlockPeer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl BlockPeer {
    pub(super) fn start(test: &str, socket: &str) -> BlockPeer {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--ignored", "--exact", &format!("gpu::pool_blocks::{test}"), "--nocapture"]);
        command.env(OPERANDS, socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        BlockPeer { child, input, output: BufReader::new(output) }
    }

    pub(super) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    /// Returns the next answer.
    pub(super) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("text") > 0, "the other process has ended");
            // The harness prints the name of the test before it.
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    pub(super) fn finish(self) {
        let BlockPeer { mut child, input, output } = self;
        drop(input);
        assert!(child.wait().expect("it ends").success());
        drop(output);
    }
}

/// Answers the first process.
pub(super) fn answer(text: &str) {
    println!("> {text}");
    std::io::stdout().flush().expect("the first process reads");
}

/// Returns the next line of the first process, or `None` at its end.
pub(super) fn next_line() -> Option<String> {
    std::io::stdin().lines().next().map(|line| line.expect("text"))
}
