//! Prints how many pages each NUMA node has, of a range of a process or of its memory file.
//!
//!   page_nodes PID range BEGIN LENGTH [PAGE]   of a range
//!   page_nodes PID file DESCRIPTOR [PAGE]      of a file that the process has open
//!
//! BEGIN is hexadecimal, as in /proc/PID/maps. LENGTH and PAGE are bytes; PAGE is 4096 by default.
//! It prints "node 0: 3, node 2: 1, none: 4".

use std::fs::File;

use hostbuf_programs::numa::file_pages::file_page_nodes;
use hostbuf_programs::numa::page_nodes::{count_by_node, describe, page_nodes};

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("\"{text}\" is not a number"));
    let page = |rest: &[&str]| match rest {
        [] => Ok(4096),
        [page] => number(page),
        _ => Err("too many arguments".to_owned()),
    };
    let nodes = match &arguments[..] {
        [pid, "range", begin, length, rest @ ..] => {
            let begin = usize::from_str_radix(begin.trim_start_matches("0x"), 16);
            let begin = begin.map_err(|_| "BEGIN is not a hexadecimal number")?;
            page_nodes(number(pid)? as i32, begin, number(length)?, page(rest)?)
        }
        [pid, "file", descriptor, rest @ ..] => {
            let path = format!("/proc/{pid}/fd/{descriptor}");
            let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
            file_page_nodes(&file, page(rest)?)
        }
        _ => return Err("expected PID range BEGIN LENGTH [PAGE], or PID file DESCRIPTOR [PAGE]".into()),
    };
    println!("{}", describe(&count_by_node(&nodes.map_err(|error| error.to_string())?)));
    Ok(())
}
