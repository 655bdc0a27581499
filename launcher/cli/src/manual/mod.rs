//! The manual and the completions for shells. Both are generated from the definition of the command
//! line, so that they list exactly its options. `hostbuf manual PREFIX` writes them, and
//! scripts/install calls it.

mod names;
mod page;

use std::fs;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use hostbuf::{Error, Result};

/// The sections after the options, by the name of the command.
const SECTIONS: [(&str, &str); 9] = [
    ("run", include_str!("run.man")),
    ("exec", include_str!("exec.man")),
    ("load", include_str!("load.man")),
    ("bench", include_str!("bench.man")),
    ("broker", include_str!("broker.man")),
    ("mirror", include_str!("mirror.man")),
    ("stat", include_str!("stat.man")),
    ("doctor", include_str!("doctor.man")),
    ("topology", include_str!("topology.man")),
];
/// The sections of the page of the command itself.
const COMMAND: &str = include_str!("hostbuf.man");
/// The page of libhostbuf without its title.
const LIBRARY: &str = include_str!("library.man");

/// The paths at which the shells search completions.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/hostbuf"),
    (Shell::Zsh, "share/zsh/site-functions/_hostbuf"),
    (Shell::Fish, "share/fish/vendor_completions.d/hostbuf.fish"),
];

/// Writes the pages and the completions of `command` below `prefix`.
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn write(command: &Command, prefix: &Path, date: &str) -> Result<()> {
    let command = for_people(command);
    let file = |place: &str, text: &[u8]| {
        let path = prefix.join(place);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        made.map_err(|source| Error::Os { doing: format!("writing {}", path.display()), source })
    };
    file("share/man/man1/hostbuf.1", page::page(&command, &names::insert(COMMAND), date).as_bytes())?;
    for (name, sections) in SECTIONS {
        let verb = command.find_subcommand(name).expect("for_people has it");
        file(
            &format!("share/man/man1/hostbuf-{name}.1"),
            page::page(verb, &names::insert(sections), date).as_bytes(),
        )?;
    }
    file("share/man/man3/hostbuf.3", (page::title("hostbuf", 3, date) + &names::insert(LIBRARY)).as_bytes())?;
    for (shell, place) in COMPLETIONS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), "hostbuf", &mut text);
        file(place, &text)?;
    }
    Ok(())
}

/// Returns the command line without hidden parts, which completions would offer.
fn for_people(command: &Command) -> Command {
    let verb = |name| command.find_subcommand(name).expect("each page has its command");
    let mut shown = without_hidden("hostbuf", command)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .disable_help_subcommand(true)
        .subcommands(SECTIONS.iter().map(|(name, _)| without_hidden(name, verb(name))));
    shown.build();
    shown
}

/// Returns a new command without the hidden arguments of `command`, since clap cannot remove
/// arguments.
fn without_hidden(name: &'static str, command: &Command) -> Command {
    let mut shown = Command::new(name).args(command.get_arguments().filter(|a| !a.is_hide_set()).cloned());
    if let Some(text) = command.get_about() {
        shown = shown.about(text.clone());
    }
    if let Some(text) = command.get_long_about() {
        shown = shown.long_about(text.clone());
    }
    if let Some(text) = command.get_after_help() {
        shown = shown.after_help(text.clone());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_visible_commands_have_manual_pages() {
        let command = <crate::CommandLine as clap::CommandFactory>::command();
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut shown: Vec<_> = verbs.map(Command::get_name).collect();
        let mut pages: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
        shown.sort_unstable();
        pages.sort_unstable();
        assert_eq!(shown, pages);
    }

    #[test]
    fn completions_offer_pages_and_no_files() {
        let command = <crate::CommandLine as clap::CommandFactory>::command();
        let mut text = Vec::new();
        clap_complete::generate(Shell::Bash, &mut for_people(&command), "hostbuf", &mut text);
        let text = String::from_utf8(text).expect("bash is UTF-8");
        let run = text.split("hostbuf__run)").nth(1).or_else(|| text.split("hostbuf__subcmd__run)").nth(1));
        let run = run.expect("there is a part for run");
        for (option, offered) in [
            ("--pages)", "\"auto 4k thp 2m 1g\""),
            ("--launcher)", "\"auto local openmpi"),
            ("--numa)", "\"interleave copies 0\""),
        ] {
            let lines: Vec<&str> = run.split(option).nth(1).expect("run has it").lines().take(3).collect();
            assert!(lines.iter().any(|line| line.contains(offered)), "{option}: {lines:?}");
        }
        for option in ["--size)", "--host)", "--ranks)"] {
            let lines: Vec<&str> = run.split(option).nth(1).expect("run has it").lines().take(3).collect();
            assert!(!lines.iter().any(|line| line.contains("compgen -f")), "{option}: {lines:?}");
        }
    }
}
