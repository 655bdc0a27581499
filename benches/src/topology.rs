//! The time of `hostbuf topology` and of hwloc's `lstopo`, as whole processes that take turns.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::BenchResult;
use crate::sample::{note, time, timed, turns};

/// Measures both on each of `trees`, the folders of recorded hosts, and on this host.
pub(crate) fn compare(hostbuf: &str, lstopo: &str, repeats: usize, trees: &[&str]) -> BenchResult {
    let names = trees.iter().filter_map(|tree| Path::new(tree).file_name()?.to_str());
    note("topology-recorded", &format!("recorded trees: {}", names.collect::<Vec<_>>().join(", ")));
    for repeat in 0..=repeats {
        for turn in turns(repeat) {
            let (side, program) = [("ours", hostbuf), ("theirs", lstopo)][turn];
            let on_trees = trees.iter().try_fold(std::time::Duration::ZERO, |sum, tree| {
                Ok::<_, Box<dyn std::error::Error>>(sum + run(&mut command(turn, program, Some(tree)))?)
            })?;
            let on_host = run(&mut command(turn, program, None))?;
            // The first round reads the files into memory.
            if repeat > 0 {
                if !trees.is_empty() {
                    time("topology-recorded", side, on_trees);
                }
                time("topology-host", side, on_host);
            }
        }
    }
    Ok(())
}

/// Returns the command that prints the topology of a tree, or of this host.
fn command(turn: usize, program: &str, tree: Option<&str>) -> Command {
    let mut command = Command::new(program);
    match (turn, tree) {
        (0, None) => command.args(["topology", "--json"]),
        (0, Some(tree)) => command.args(["topology", "--json", "--root", tree]),
        (_, None) => command.args(["--whole-io", "-.xml"]),
        (_, Some(tree)) => command.args(["--whole-io", "--input", tree, "--if", "fsroot", "-.xml"]),
    };
    command
}

fn run(command: &mut Command) -> Result<std::time::Duration, Box<dyn std::error::Error>> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let (elapsed, status) = timed(|| command.status());
    match status?.success() {
        true => Ok(elapsed),
        false => Err(format!("{command:?} failed").into()),
    }
}
