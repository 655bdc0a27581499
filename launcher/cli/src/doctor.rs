//! `hostbuf doctor`: checks what this host supports, by trying it where that is possible.
//!
//! Each line is one finding. A note concerns something that hostbuf can do without or in another
//! way. A shortfall comes with the command that remedies it. The exit status depends only on
//! requirements.

mod addresses;
mod child;
mod devices;
mod files;
mod gpu_request;
mod kernel;
mod kernel_text;
mod launch_commands;
mod limits;
mod memory;
mod pages;
mod pool;
mod registration;
mod topology;

use std::fmt::Write as _;
use std::process::ExitCode;

use hostbuf::segment::{add_sections, check_all};
use hostbuf::{BufferOptions, Bytes, Error, ErrorClass, Result};
use serde_json::{Value, json};

use crate::arguments::PlacementArguments;
use crate::finding::{Finding, Mark};
use crate::printable::{printable, printable_json};
use crate::result_output::print_result;
use hostbuf_agent::report::{end, exit_code};

/// Check what this host supports, and print a command for each shortfall.
///
/// The exit status is 0 unless this host cannot have a buffer (with --size, --numa and --section:
/// this buffer).
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Check whether a buffer of this size fits: 512M, 2G
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub size: Option<Bytes>,
    #[command(flatten)]
    pub placement: PlacementArguments,
}

impl DoctorArguments {
    /// Returns the requested buffer, or `None` if none is.
    ///
    /// # Errors
    /// [`Error::Invalid`] for invalid options, and for a placement without a size.
    fn buffer(&self) -> Result<Option<BufferOptions>> {
        let PlacementArguments { numa, section } = &self.placement;
        if self.size.is_none() && section.is_empty() {
            let missing = || Error::Invalid { what: "--numa requires --size or --section".into() };
            return numa.as_ref().map_or(Ok(None), |_| Err(missing()));
        }
        let mut options = BufferOptions::new(self.size.map_or(0, |size| size.0));
        options.numa.clone_from(numa);
        let mut list = vec![options];
        add_sections(&mut list, section.iter().cloned())?;
        check_all(&list)?;
        Ok(list.pop())
    }
}

/// Runs all checks and prints their findings.
pub fn run(arguments: &DoctorArguments) -> ExitCode {
    let buffer = match arguments.buffer() {
        Ok(buffer) => buffer,
        Err(error) => return end("hostbuf doctor", error.class(), error),
    };
    let size = buffer.as_ref().map(|buffer| arguments.size.map_or(buffer.demand().length(), |size| size.0));
    let placed = buffer.as_ref().filter(|buffer| {
        buffer.numa.is_some() || buffer.sections.iter().any(|section| section.numa.is_some())
    });
    limits::ignore_file_size_signal();
    let groups = [
        ("memory", memory::lines(size, placed)),
        ("pages", pages::lines(size)),
        ("kernel", kernel::lines()),
        ("addresses", addresses::lines(size)),
        ("limits", limits::lines(size)),
        ("files", files::lines()),
        ("MPI", launch_commands::lines()),
        ("devices", devices::lines().into_iter().chain(gpu_request::line(buffer.as_ref())).collect()),
        ("registration", registration::lines()),
        ("topology", topology::lines()),
        ("pool", pool::lines()),
    ];
    let usable = groups.iter().flat_map(|(_, lines)| lines).all(|l| !(l.needed && l.mark == Mark::Lacks));
    let host = hostbuf_os::process::host_name();
    let text = if arguments.json {
        printable_json(&in_json(&host, usable, size, &groups))
    } else {
        in_words(&host, usable, size, &groups)
    };
    let status = if usable { ExitCode::SUCCESS } else { exit_code(ErrorClass::General) };
    print_result("hostbuf doctor", &text, status)
}

fn in_json(host: &str, usable: bool, size: Option<u64>, groups: &[(&str, Vec<Finding>)]) -> Value {
    let one = |group: &str, line: &Finding| {
        json!({
            "group": group.to_lowercase(), "name": line.name, "mark": line.mark.name(), "needed": line.needed,
            "says": line.says, "mends": line.mends, "values": line.values,
        })
    };
    let checks: Vec<Value> =
        groups.iter().flat_map(|(group, lines)| lines.iter().map(|line| one(group, line))).collect();
    json!({ "host": host, "usable": usable, "size_bytes": size, "checks": checks })
}

fn in_words(host: &str, usable: bool, size: Option<u64>, groups: &[(&str, Vec<Finding>)]) -> String {
    let mut text = String::new();
    let names = groups.iter().flat_map(|(_, lines)| lines).map(|l| l.name.chars().count());
    let width = names.max().unwrap_or(0);
    for (group, lines) in groups {
        writeln!(text, "{group}").expect("to memory");
        for line in lines {
            writeln!(text, "  {:<5}  {:<width$}  {}", line.mark.name(), line.name, printable(&line.says))
                .expect("to memory");
            for mend in &line.mends {
                writeln!(text, "  {:<5}  {:<width$}  -> {}", "", "", printable(mend)).expect("to memory");
            }
        }
    }
    let what = size.map_or("buffers".into(), |size| format!("a buffer of {}", Bytes(size)));
    let verdict = if usable { "can have" } else { "cannot have" };
    writeln!(text, "{host} {verdict} {what}").expect("to memory");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_have_the_same_findings() {
        let lines = vec![
            Finding::ok("memfd", "works").needed(),
            Finding::lacks("memlock", "8 MiB").mend("ulimit -l unlimited").value("limit_bytes", 8 << 20),
        ];
        let groups = [("kernel", lines)];
        let words = in_words("h0", true, Some(2 << 30), &groups);
        assert!(words.contains("  ok     memfd    works\n"), "{words}");
        assert!(words.contains("  lacks  memlock  8 MiB\n") && words.contains("-> ulimit -l unlimited\n"));
        assert!(words.ends_with("h0 can have a buffer of 2 GiB\n"));
        let json = in_json("h0", true, None, &groups);
        assert_eq!(json["checks"][1]["values"]["limit_bytes"], 8 << 20);
        assert_eq!(json["checks"][0]["mark"], "ok");
    }
}
