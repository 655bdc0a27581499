//! Runs commands in a machine of `scripts/numa-vm`.

use std::fs;
use std::process::Command;

use hostbuf_tests::{CommandOutput, program, root, skip};

/// A command that runs in a machine, and the check of its output. Its standard error goes to the
/// standard output, too.
pub struct GuestCheck {
    pub name: &'static str,
    /// The command in the syntax of bash.
    pub command: String,
    /// Returns the reason if the output is not as it should be.
    pub check: fn(&CommandOutput) -> Result<(), String>,
}

/// A machine that will boot, with the kernel of Debian 12 and empty pools of huge pages.
pub struct NumaMachine {
    layout: &'static str,
    kernel: &'static str,
    /// The number of huge pages of each node.
    huge: &'static [usize],
    has_rdma: bool,
}

/// The exit status of the last command in the machine, which the script must pass on.
const END: i32 = 7;

impl NumaMachine {
    pub fn new(layout: &'static str) -> NumaMachine {
        NumaMachine { layout, kernel: "6.1", huge: &[], has_rdma: false }
    }

    pub fn kernel(self, kernel: &'static str) -> NumaMachine {
        NumaMachine { kernel, ..self }
    }

    pub fn huge(self, huge: &'static [usize]) -> NumaMachine {
        NumaMachine { huge, ..self }
    }

    /// Adds an RDMA device.
    pub fn rdma(self) -> NumaMachine {
        NumaMachine { has_rdma: true, ..self }
    }

    pub fn huge_pages(&self) -> &'static [usize] {
        self.huge
    }

    /// Boots the machine, runs the commands one after the other in the repository's folder, and
    /// checks their outputs.
    pub fn run(&self, checks: &[GuestCheck]) {
        let Some(mut script) = script(&["--kernel", self.kernel]) else { return };
        let huge: Vec<String> = self.huge.iter().map(ToString::to_string).collect();
        script.args(["--layout", self.layout]);
        if !huge.is_empty() {
            script.args(["--huge", &huge.join(",")]);
        }
        if self.has_rdma {
            script.arg("--rdma");
        }
        // Each command begins with an empty line, since the one before may not have ended its last.
        let each = checks.iter().map(|check| {
            format!(
                "SECONDS=0\n({}) 2>&1 </dev/null\nprintf '\\n== {} %s %s s\\n' $? $SECONDS\n",
                check.command, check.name
            )
        });
        let commands = format!("{}exit {END}", each.collect::<String>());
        let temporary = root().join(format!("target/tmp/numa-{}", std::process::id()));
        fs::create_dir_all(&temporary).expect("a folder");
        script.args(["--", "bash", "-c", &commands]).current_dir(root()).env("TMPDIR", &temporary);
        let output = CommandOutput::of(&mut script);
        // Removing a folder that is not empty is an error.
        fs::remove_dir(&temporary).expect("nothing was left in it");
        println!("{}{}", output.stdout, output.stderr);
        assert_eq!(output.status, END, "the status of the machine {}", self.layout);
        let mut rest = output.stdout.as_str();
        let mut failures = Vec::new();
        for check in checks {
            let (stdout, after) = rest.split_once(&format!("\n== {} ", check.name)).expect("it has ended");
            let (ending, after) = after.split_once('\n').expect("its status and its duration");
            rest = after;
            let status = ending.split(' ').next().and_then(|status| status.parse().ok());
            let (stdout, status) = (stdout.to_owned(), status.expect("a number"));
            if let Err(why) = (check.check)(&CommandOutput { status, stdout, stderr: String::new() }) {
                failures.push(format!("{}: {why}", check.name));
            }
        }
        assert!(failures.is_empty(), "on {}, kernel {}: {failures:#?}", self.layout, self.kernel);
    }
}

/// Returns the script with these arguments, or `None` if it cannot run here.
pub fn script(arguments: &[&str]) -> Option<Command> {
    let path = root().join("scripts/numa-vm");
    let check = CommandOutput::of(Command::new(&path).args(arguments).arg("--check"));
    if check.status != 0 {
        assert_eq!(check.status, 77, "{}{}", check.stdout, check.stderr);
        skip(&format!("NUMA: {}", check.stdout.trim()));
        return None;
    }
    let mut command = Command::new(path);
    command.args(arguments);
    Some(command)
}

/// Returns the command line of a program of the workspace.
pub fn command_line(name: &str, arguments: &[String]) -> String {
    format!("'{}' {}", program(name).display(), arguments.join(" "))
}

/// Requires that a program has printed a line "ok NAME ..." for each of these checks, and no other
/// line.
pub fn all_ok(output: &CommandOutput, checks: &[&str]) -> Result<(), String> {
    let lines: Vec<&str> = output.stdout.lines().filter(|line| !line.is_empty()).collect();
    let well = lines.len() == checks.len()
        && checks.iter().zip(&lines).all(|(check, line)| line.starts_with(&format!("ok {check} ")));
    let wrong = || format!("status {}, {lines:#?} instead of {checks:?}", output.status);
    if well && output.status == 0 { Ok(()) } else { Err(wrong()) }
}
