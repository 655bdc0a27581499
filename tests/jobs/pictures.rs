//! Pictures of the buffers and of the machine: `hostbuf stat --svg` and `hostbuf topology --svg`.

use std::fs;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, hostbuf, local};

fn command(arguments: &[&str]) -> CommandOutput {
    CommandOutput::of(Command::new(hostbuf()).args(arguments))
}

fn expect_picture(text: &str, title: &str) {
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
    assert!(text.contains(&format!("<title>{title}")), "{text}");
}

#[test]
fn a_picture_is_written_to_a_file_or_to_standard_output() {
    let folder = Scratch::new("pictures");
    for (name, title) in [("stat", "the buffers of "), ("topology", "the topology of ")] {
        let path = folder.path(name);
        assert_eq!(command(&[name, "--svg", &path]).ok().stdout, "");
        expect_picture(&fs::read_to_string(&path).expect("a picture"), title);
        expect_picture(&command(&[name, "--svg", "-"]).ok().stdout, title);
    }
}

#[test]
fn pictures_that_cannot_be_written_give_one_line() {
    let folder = Scratch::new("pictures-refused");
    for name in ["stat", "topology"] {
        let outcome = command(&[name, "--svg", &folder.path("none/picture.svg")]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (85, ""), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        assert!(
            outcome.stderr.contains("writing the picture ") && outcome.stderr.contains("none/picture.svg")
        );
        let both = command(&[name, "--svg", &folder.path("x"), "--json"]);
        assert!(both.status == 2 && both.stderr.contains("--json"), "{both:?}");
        assert!(!fs::exists(folder.path("x")).expect("the folder is readable"));
    }
}

#[test]
fn the_picture_has_the_buffers_and_sections_of_a_job() {
    let draw = format!("[ $HOSTBUF_RANK != 0 ] || '{}' stat --svg -", hostbuf().display());
    let options = ["--section", "name=grid,size=2M"];
    let picture = local(2, "4M", &options, &["sh", "-c", &draw]).ok().stdout;
    expect_picture(&picture, "the buffers of ");
    for words in ["4 MiB, at 0x550000000000", "grid, 2 MiB", "rest, 2 MiB", "any node"] {
        assert!(picture.contains(words), "{words} is missing: {picture}");
    }
}
