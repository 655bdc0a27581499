//! An engine's option that a user gives to `hostbuf run` by mistake, and the option to use instead.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::engines;

/// An engine's option, as it was typed, that `hostbuf run` does not have.
pub(crate) struct EngineOption {
    /// The word of the command line.
    pub(crate) word: String,
    /// The way to say the same to `hostbuf run`; `None` for an option that only the engine has.
    pub(crate) instead: Option<&'static str>,
}

impl EngineOption {
    /// Finds the word that made the parser give up, in the `words` behind `run`.
    ///
    /// The parser reads `-hostfile` as `-h` with more letters behind it: it prints the help, or names one letter of a word.
    pub(crate) fn find(words: &[String], error: &clap::Error) -> Option<EngineOption> {
        let context = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let word = match (error.kind(), context(ContextKind::InvalidArg)) {
            (ErrorKind::DisplayHelp, _) => {
                let word = first(words, |word| word == "--help" || word.starts_with("-h"))?;
                // `-help` and `-h` ask for help indeed.
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
                // `-np` is answered by the parser of the number, also for the programs behind a `:`.
                known(word).filter(|_| word != "-np")?;
                word
            }
            _ => return None,
        };
        Some(EngineOption { word: name(word).to_owned(), instead: known(word) })
    }
}

/// Returns the first option before the program that pleases `is_meant`. The value of `--launcher-arg` is none.
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
