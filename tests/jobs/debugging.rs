//! Programs under debugging tools: valgrind, gdb.

use hostbuf_tests::{have, local};

use crate::address::build;

#[test]
fn valgrind_reports_no_error_and_the_buffer_is_mapped() {
    if !have("valgrind") {
        return;
    }
    let program = build("cc", "variables.c", &[]).unwrap();
    let checked = ["valgrind", "--error-exitcode=9", "--leak-check=full", &program];
    // valgrind runs the program directly, and as the child of a shell.
    let traced = [
        "valgrind",
        "--error-exitcode=9",
        "--trace-children=yes",
        "sh",
        "-c",
        &format!("{program}; exit $?"),
    ];
    for (words, checks) in [(&checked[..], 2), (&traced[..], 4)] {
        let outcome = local(2, "16M", &[], words);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        assert_eq!(outcome.lines("variables "), ["0x0000550000000000 16777216"; 2], "{outcome:?}");
        assert_eq!(outcome.lines("used "), ["16"; 2], "{outcome:?}");
        let clean = outcome
            .stderr
            .lines()
            .filter(|l| l.contains("ERROR SUMMARY: 0 errors from 0 contexts (suppressed: 0"));
        assert_eq!(clean.count(), checks, "{outcome:?}");
    }
}

#[test]
fn gdb_stops_at_main_with_the_buffer_mapped() {
    if !have("gdb") {
        return;
    }
    let program = build("cc", "variables.c", &[]).unwrap();
    let words = [
        "gdb",
        "-nx",
        "-batch",
        "-ex",
        "set debuginfod enabled off",
        "-ex",
        "break main",
        "-ex",
        "run",
        "-ex",
        "print *(char *)0x550000000000",
        "-ex",
        "continue",
        &program,
    ];
    let outcome = local(1, "16M", &[], &words).ok();
    assert!(outcome.stdout.contains("$1 = 0 '\\000'"), "{outcome:?}");
    assert_eq!(outcome.lines("used "), ["16"], "{outcome:?}");
}
