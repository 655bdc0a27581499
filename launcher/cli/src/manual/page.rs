//! The manual page of a command, in the macros of man(7).

use std::fmt::Write;

use clap::{Arg, Command};

/// The largest number of bytes in a line of text.
const WIDTH: usize = 78;

/// Returns the page of `command`, with `sections` after its options.
pub(super) fn page(command: &Command, sections: &str, date: &str) -> String {
    let called = command.get_bin_name().unwrap_or(command.get_name());
    let name = called.replace(' ', "-");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = title(&name, 1, date);
    // The description contains the rest of the text.
    let line = about.split_once(": ").map_or(about.as_str(), |(line, _)| line);
    let line = text(&format!("{name} - {}", line.trim_end_matches('.')));
    write!(page, ".SH NAME\n{line}\n").expect("it is a string");
    synopsis(&mut page, command, called);
    page += ".SH DESCRIPTION\n";
    let description = command.get_long_about().map_or(about, ToString::to_string);
    page += &paragraphs(&description);
    if let Some(more) = command.get_after_help() {
        page += ".PP\n";
        page += &paragraphs(&more.to_string());
    }
    if command.has_subcommands() {
        page += ".SH COMMANDS\n";
        for verb in command.get_subcommands() {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            let name = escaped(&format!("{name}-{}", verb.get_name()));
            write!(page, ".TP\n.BR {name} (1)\n{}\n", text(&about)).expect("it is a string");
        }
    }
    page += ".SH OPTIONS\n";
    let (operands, options): (Vec<_>, Vec<_>) =
        command.get_arguments().filter(|a| !a.is_hide_set()).partition(|a| a.is_positional());
    for argument in options.into_iter().chain(operands) {
        option(&mut page, argument);
    }
    page + sections
}

/// Returns the beginning of a page, which disables hyphenation because of the names of functions.
pub(super) fn title(name: &str, section: u8, date: &str) -> String {
    let kind = if section == 1 { "User Commands" } else { "Library Functions" };
    let version = env!("CARGO_PKG_VERSION");
    format!(
        ".TH {} {section} \"{date}\" \"hostbuf {version}\" \"{kind}\"\n.nh\n",
        escaped(&name.to_uppercase())
    )
}

fn synopsis(page: &mut String, command: &Command, called: &str) {
    write!(page, ".SH SYNOPSIS\n.B {}\n[\\fIOPTIONS\\fR]", escaped(called)).expect("it is a string");
    if command.has_subcommands() {
        *page += " \\fICOMMAND\\fR ...";
    }
    for operand in command.get_positionals() {
        write!(page, " [\\fB\\-\\-\\fR] \\fI{}\\fR ...", value(operand)).expect("it is a string");
    }
    *page += "\n";
}

fn option(page: &mut String, argument: &Arg) {
    let mut names: Vec<String> = Vec::new();
    names.extend(argument.get_short_and_visible_aliases().into_iter().flatten().map(|c| format!("-{c}")));
    names.extend(argument.get_long_and_visible_aliases().into_iter().flatten().map(|l| format!("--{l}")));
    let names: Vec<_> = names.iter().map(|name| format!("\\fB{}\\fR", escaped(name))).collect();
    let takes = argument.get_action().takes_values().then(|| format!("\\fI{}\\fR", value(argument)));
    let head = match takes {
        // A value that may be left out follows the equals sign.
        Some(value) if argument.is_require_equals_set() => format!("{}[={value}]", names.join(", ")),
        Some(value) => {
            [names.join(", "), value].into_iter().filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ")
        }
        None => names.join(", "),
    };
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    write!(page, ".TP\n{}\n{}\n", head, text(&help)).expect("it is a string");
    if !argument.get_action().takes_values() || argument.is_hide_possible_values_set() {
        return;
    }
    let default = argument.get_default_values().first().and_then(|v| v.to_str());
    for choice in argument.get_possible_values() {
        let name = choice.get_name();
        let help = choice.get_help().map(ToString::to_string).unwrap_or_default();
        let by_default = if default == Some(name) { " (the default)" } else { "" };
        write!(page, ".RS\n.TP\n.B {}\n{}\n.RE\n", escaped(name), text(&format!("{help}{by_default}")))
            .expect("it is a string");
    }
}

fn value(argument: &Arg) -> String {
    escaped(&argument.get_value_names().unwrap_or_default().join(" "))
}

/// Formats the paragraphs of a text of clap, which empty lines separate.
fn paragraphs(plain: &str) -> String {
    let paragraphs: Vec<_> = plain.split("\n\n").map(|p| text(&p.replace('\n', " "))).collect();
    paragraphs.join("\n.PP\n") + "\n"
}

/// Formats a text in lines, with words between backquotes in bold.
fn text(plain: &str) -> String {
    let mut text = String::new();
    for (i, part) in plain.split('`').enumerate() {
        match i % 2 {
            0 => text += &escaped(part),
            _ => write!(text, "\\fB{}\\fR", escaped(part)).expect("it is a string"),
        }
    }
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let fits = column + 1 + word.len() <= WIDTH;
        match (column, fits) {
            (0, _) => {}
            (_, true) => lines.push(' '),
            (_, false) => lines.push('\n'),
        }
        column = if column > 0 && fits { column + 1 } else { 0 };
        // A line that begins with a full stop is a macro.
        if column == 0 && word.starts_with('.') {
            lines += "\\&";
        }
        lines += word;
        column += word.len();
    }
    lines
}

/// Escapes the characters of `plain` that would begin an escape or a hyphen.
fn escaped(plain: &str) -> String {
    plain.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(text(".so it's `-n 2` \\fB"), "\\&.so it\\(aqs \\fB\\-n 2\\fR \\efB");
    }
}
