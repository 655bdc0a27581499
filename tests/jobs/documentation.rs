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
