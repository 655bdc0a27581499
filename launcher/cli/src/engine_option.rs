//! An engine's option that a user gives to `hostbuf run` by mistake, and the option to use instead.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::engines;

/// An engine's option on the command line of `hostbuf run`.
pub(crate) struct EngineOption {
    /// The option as typed, without its value.
    pub(crate) word: String,
    /// The option of `hostbuf run` with the same meaning; `None` if only the engine has one.
    pub(crate) instead: Option<&'static str>,
}

impl EngineOption {
    /// Finds the word that the parser has refused, in the `words` after `run`.
    ///
    /// The parser reads `-hostfile` as `-h` with more letters behind it: it prints the help, or
    /// names one letter of a word.
    pub(crate) fn find(words: &[String], error: &clap::Error) -> Option<EngineOption> {
        let context = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let word = match (error.kind(), context(ContextKind::InvalidArg)) {
            (ErrorKind::DisplayHelp, _) => {
                let word = first(words, |word| word == "--help" || word.starts_with("-h"))?;
                // `-help` and `-h` request help.
                known(word)?;
                word
            }
            (ErrorKind::UnknownArgument, Some(option)) if option.starts_with("--") => {
                first(words, |word| name(word) == name(option))?
            }
            (ErrorKind::UnknownArgument, Some(option)) => first(words, |word| word.starts_with(option))
                .or_else(|| first(words, |word| is_single(word) && word.contains(&option[1..])))?,
            // `-npernode 2` is read as `-n pernode`.
            (ErrorKind::ValueValidation, Some(option)) if option.starts_with("--ranks") => {
                let value = context(ContextKind::InvalidValue)?;
                let word = first(words, |word| is_single(word) && word.len() > 2 && word.ends_with(value))?;
                // The parser of the number answers `-np`, also for the programs after a `:`.
                known(word).filter(|_| word != "-np")?;
                word
            }
            _ => return None,
        };
        Some(EngineOption { word: name(word).to_owned(), instead: known(word) })
    }
}

/// Returns the first option before the program for which `is_meant` returns true, except values of
/// `--launcher-arg`.
fn first(words: &[String], is_meant: impl Fn(&str) -> bool) -> Option<&str> {
    let before = words.iter().enumerate().take_while(|(_, word)| *word != "--");
    let options = before.filter(|&(at, word)| {
        word.starts_with('-') && at.checked_sub(1).is_none_or(|last| words[last] != "--launcher-arg")
    });
    options.map(|(_, word)| word.as_str()).find(|word| is_meant(word))
}

fn is_single(word: &str) -> bool {
    !word.starts_with("--")
}

/// Returns an option without its value.
fn name(word: &str) -> &str {
    word.split(['=', ' ']).next().unwrap_or(word)
}

/// Returns the option of `hostbuf run` with the meaning of an engine's option.
fn known(word: &str) -> Option<&'static str> {
    let option = name(word).trim_start_matches('-');
    let mut replacements = engines::ALL.iter().flat_map(|engine| engine.replacements());
    replacements
        .find(|replacement| replacement.names.contains(&option))
        .map(|replacement| replacement.instead)
}
