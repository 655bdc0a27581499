//! The pages and the manual against the interfaces that they describe.

use std::fs;

use hostbuf::ErrorClass;
use hostbuf_tests::{Scratch, root, run};

#[test]
fn the_page_on_failures_has_a_row_for_each_status() {
    let page = fs::read_to_string(root().join("docs/failures.md")).expect("the page is there");
    for class in ErrorClass::ALL {
        let row = format!("\n| {} | ", class.status());
        assert!(page.contains(&row), "docs/failures.md has no row for {class:?}");
    }
    let rows = page.lines().skip_while(|line| *line != "| status | class | see |").skip(2);
    let listed: Vec<u8> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|row| row.split(' ').nth(1).and_then(|status| status.parse().ok()).expect(row))
        .collect();
    let success = [0];
    let wanted: Vec<u8> = success.into_iter().chain(ErrorClass::ALL.map(ErrorClass::status)).collect();
    assert_eq!(listed, wanted, "docs/failures.md has rows for statuses that do not exist");
    // The sentence that names the classes that no command returns.
    let text = page.replace('\n', " ");
    let sentence = text
        .split(". ")
        .find(|sentence| sentence.contains("Only calls of the library"))
        .expect("the sentence");
    let words: Vec<&str> = sentence.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
    let number = |word: &str| word.parse::<u8>().ok();
    let mut named = Vec::new();
    for (n, word) in words.iter().enumerate() {
        let Some(last) = number(word) else { continue };
        let first = if words[n - 1] == "to" { number(words[n - 2]).expect(sentence) + 1 } else { last };
        named.extend(first..=last);
    }
    assert_eq!(named, LIBRARY_ONLY.map(ErrorClass::status), "{sentence}");
}

/// The classes of errors that only calls of the library make. docs/failures.md states them too.
const LIBRARY_ONLY: [ErrorClass; 7] = [
    ErrorClass::Full,
    ErrorClass::Peer,
    ErrorClass::Freeze,
    ErrorClass::Replicate,
    ErrorClass::Budget,
    ErrorClass::Limit,
    ErrorClass::Forked,
];

/// Returns the statuses in the section EXIT STATUS of a manual page.
fn statuses(page: &str) -> Vec<u8> {
    let (_, section) = page.split_once(".SH EXIT STATUS\n").expect("the page has the section");
    let section = section.split("\n.SH ").next().expect("the text in front");
    let numbers = |line: &str| line.replace("\\fR", "").replace("\\fB", "");
    let lines = section.lines().filter_map(|line| line.strip_prefix(".B ")).map(numbers);
    lines.flat_map(|line| line.split(", ").map(|n| n.parse().expect(&line)).collect::<Vec<_>>()).collect()
}

#[test]
fn the_manual_lists_every_status_that_a_command_returns() {
    let folder = Scratch::new("statuses");
    run(&["manual", &folder.path("")]).ok();
    let of_commands = ErrorClass::ALL.into_iter().filter(|class| !LIBRARY_ONLY.contains(class));
    for (command, is_returned) in [
        ("run", (|_| true) as fn(&ErrorClass) -> bool),
        // Each agent of `hostbuf exec` is a group of one, in which no collective operation fails.
        ("exec", |class| *class != ErrorClass::Collective),
    ] {
        let page = fs::read_to_string(folder.path(&format!("share/man/man1/hostbuf-{command}.1")));
        let wanted: Vec<u8> = of_commands.clone().filter(is_returned).map(ErrorClass::status).collect();
        assert_eq!(statuses(&page.expect("the page was written")), wanted, "hostbuf-{command}(1)");
    }
}

#[test]
fn the_manual_of_the_library_names_every_function_of_the_header() {
    let folder = Scratch::new("manual");
    run(&["manual", &folder.path("")]).ok();
    let page = fs::read_to_string(folder.path("share/man/man3/hostbuf.3")).expect("the page was written");
    let header = fs::read_to_string(root().join("include/hostbuf.h")).expect("the header is there");
    let beside = [" ", "/", "#", "typedef"];
    let declared = header.lines().filter(|line| !beside.iter().any(|b| line.starts_with(b)));
    let names: Vec<_> =
        declared.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next()).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(page.contains(&format!(".BR {name} ()")), "hostbuf(3) does not describe {name}");
    }
}
