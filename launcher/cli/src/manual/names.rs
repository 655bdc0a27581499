//! The names of engines and devices in the manual. The sections have placeholders for them, which
//! are filled from the lists, so that a new engine or device changes no page.

use hostbuf::register::DeviceName;

use crate::engines;

/// Returns `sections` with the names in place of the placeholders.
pub(super) fn insert(sections: &str) -> String {
    let commands = engines::COMMON_COMMANDS.iter().copied().chain(engines::without_mpirun_commands());
    let variables = engines::ALL.iter().filter_map(|engine| engine.rank_variable());
    let allocations = engines::ALL.iter().filter_map(|engine| engine.allocation_variable());
    [
        ("@LAUNCH_COMMANDS@", listed(commands, "and")),
        ("@RANK_VARIABLES@", listed(variables, "or")),
        ("@ALLOCATION_VARIABLES@", listed(allocations, "or")),
        ("@FLAVOURS@", listed(engines::flavours(), "and")),
        ("@ABIS@", listed(engines::abis().map(|abi| abi.flavour), "and")),
        ("@DEVICES@", listed(DeviceName::all_forms(), "or")),
    ]
    .into_iter()
    .fold(sections.to_owned(), |text, (placeholder, names)| text.replace(placeholder, &names))
}

/// Returns the names in bold, each once, separated by commas, with `last` in front of the last one.
fn listed<'a>(names: impl Iterator<Item = &'a str>, last: &str) -> String {
    let mut bold: Vec<String> = Vec::new();
    for name in names.map(|name| format!("\\fB{}\\fR", name.replace('-', "\\-"))) {
        if !bold.contains(&name) {
            bold.push(name);
        }
    }
    match bold.split_last() {
        Some((end, others)) if !others.is_empty() => format!("{} {last} {end}", others.join(", ")),
        _ => bold.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled_from_the_lists() {
        let text = insert(
            "@LAUNCH_COMMANDS@\n@RANK_VARIABLES@\n@ALLOCATION_VARIABLES@\n@FLAVOURS@\n@ABIS@\n@DEVICES@\n",
        );
        assert!(!text.contains('@'), "{text}");
        for engine in engines::ALL {
            let names = engine.flavours().iter().copied().chain(engine.rank_variable());
            for name in names.chain(engine.allocation_variable()) {
                assert!(text.contains(&format!("\\fB{name}\\fR")), "{name}: {text}");
            }
        }
    }

    #[test]
    fn the_last_name_of_a_list_has_a_conjunction() {
        assert_eq!(listed(["a-b", "c", "d"].into_iter(), "and"), "\\fBa\\-b\\fR, \\fBc\\fR and \\fBd\\fR");
        assert_eq!(listed(["a", "a"].into_iter(), "or"), "\\fBa\\fR");
    }
}
