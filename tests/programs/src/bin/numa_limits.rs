//! Runs a command as root while a NUMA node lacks memory, or in a cpuset without some nodes.
//!
//!   numa_limits [full NODE MIB]... [nodes LIST] -- COMMAND...
//!
//! `full` leaves at most MIB MiB of node NODE available, beyond what the kernel keeps for itself;
//! `nodes` allows the command memory of the nodes of a list as in "0,2-3". The exit status is the
//! command's, or 128 and the number of the signal that ended it.

#![allow(unsafe_code, reason = "runs functions between fork and exec")]

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use hostbuf_programs::numa::bound_memory::{FullNode, killable};
use hostbuf_programs::numa::cpuset_cgroup::CpusetCgroup;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments = arguments.iter().map(String::as_str);
    let mut next = || arguments.next().ok_or("an argument is missing");
    let (mut full, mut group) = (Vec::new(), None);
    loop {
        match next()? {
            "full" => {
                let number =
                    |text: &str| text.parse::<u32>().map_err(|_| format!("\"{text}\" is not a number"));
                full.push(FullNode::new(number(next()?)?, (number(next()?)? as usize) << 20)?);
            }
            "nodes" => group = Some(CpusetCgroup::new(next()?)?),
            "--" => break,
            other => return Err(format!("\"{other}\": expected full, nodes or --")),
        }
    }
    let mut command = Command::new(next()?);
    command.args(arguments);
    let processes = group.as_ref().map(CpusetCgroup::processes);
    // SAFETY: this process has one thread, so the child may call anything.
    unsafe {
        command.pre_exec(move || {
            if let Some(processes) = &processes {
                fs::write(processes, "0")?;
            }
            killable().map_err(std::io::Error::other)
        });
    }
    let status = command.status().map_err(|error| error.to_string())?;
    drop((full, group));
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}
