//! A lazy buffer larger than the host's memory: the cost of starting ranks with it, and of its
//! pages.

use std::process::Command;

use crate::fixture::BenchResult;
use crate::sample::{note, sample, time, timed, unmeasured};

/// The number of pages that each rank writes.
const PAGES: u64 = 64;
const PAGE: u64 = 4096;

/// Compares lazy buffers of several sizes. `program` is tests/fixtures/far_pages.c.
pub(crate) fn compare(hostbuf: &str, program: &str, ranks: u64, repeats: usize) -> BenchResult {
    let start = |size: &str, rest: &[&str]| -> Result<_, Box<dyn std::error::Error>> {
        let count = ranks.to_string();
        let mut command = Command::new(hostbuf);
        command.args(["run", "--quiet", "--launcher", "local", "-n", &count]);
        command.args(["--size", size, "--lazy", "--pages", "4k", "--"]).args(rest);
        let (elapsed, output) = timed(|| command.output());
        let output = output?;
        if !output.status.success() {
            return Err(format!("{size}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok((elapsed, String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    for _ in 0..repeats {
        time("lazy-start", "ours", start("2T", &["true"])?.0);
        time("lazy-start", "theirs", start("16M", &["true"])?.0);
    }
    let (elapsed, said) = start("2T", &[program, &PAGES.to_string()])?;
    let line = |what: &str| said.lines().find_map(|line| line.strip_prefix(what).map(str::to_owned));
    let at = line("checked ").ok_or("the ranks printed no result")?;
    note(
        "lazy-start",
        &format!("2 TiB in {at}, {PAGES} pages of each rank written and read in {elapsed:.2?}"),
    );
    match line("taken ") {
        Some(bytes) => {
            sample("lazy-pages", "ours", bytes.parse()?);
            sample("lazy-pages", "theirs", ((ranks * PAGES + 1) * PAGE) as f64);
        }
        None => unmeasured("lazy-pages", "only root can read the memory of a file"),
    }
    Ok(())
}
