//! examples/repeated_sends, as a user runs it.

use std::process::Command;

/// Returns the command of the example.
fn example() -> Command {
    Command::new(hostbuf_tests::program("repeated_sends"))
}

#[test]
fn the_example_registers_once_and_checks_its_data() {
    let words = ["--device", "mlock", "--buffers", "5", "--bytes", "10000", "--rounds", "7"];
    let output = example().args(words).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("checked "), "{said}");
    // 35 sends in all; small buffers may lie in one registration.
    let cache = said.lines().find(|line| line.starts_with("cache ")).expect("what the cache did");
    let numbers: Vec<u32> = cache.split(' ').filter_map(|word| word.parse().ok()).collect();
    let (hits, misses) = (numbers[0], numbers[1]);
    assert!(hits + misses == 35 && (1..=5).contains(&misses), "{cache}");
}

#[test]
fn invalid_arguments_of_the_example_give_one_line() {
    const MOST: &str = "18446744073709551615";
    for (words, says) in [
        (&["--device", "abacus"][..], "--device abacus: expected cuda"),
        (&["--rounds", "0"], "--rounds 0: expected a whole number from 1"),
        (&["--rounds"], "--rounds requires a value"),
        (&["--size", "1"], "unexpected argument '--size'"),
        (&["--bytes", MOST], MOST),
        (&["--buffers", MOST, "--bytes", "2"], "more than the address space holds"),
        (&["--bytes", "1000000000000"], "are free on this host"),
        (&["--buffers", "99999999999999999999"], "expected a whole number from 1 to"),
    ] {
        let output = example().args(words).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.lines().count() == 1, "{words:?}: {said}");
        assert!(said.contains(says) && !said.contains("panicked"), "{words:?}: {said}");
    }
}
