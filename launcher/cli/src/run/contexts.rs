//! The programs of a job, as the command line gives them.

use std::ffi::OsString;

use hostbuf::{Error, Result};

use crate::engines::AppContext;
use crate::hosts;

/// Splits a command line such as `./a x : -n 2 -- ./b y` at the colons. Each program after the
/// first has its own `-n`.
///
/// # Errors
/// [`Error::Invalid`].
pub(super) fn split(ranks: Option<usize>, command: Vec<OsString>) -> Result<Vec<AppContext>> {
    let mut list = Vec::new();
    for (i, part) in command.split(|word| word == ":").enumerate() {
        let wrong = |what: &str| Error::Invalid { what: format!("program {} of this job: {what}", i + 1) };
        let mut context = AppContext { ranks: if i == 0 { ranks } else { None }, command: part.to_vec() };
        if i > 0 {
            if let Some(n) =
                part.first().filter(|w| *w == "-n" || *w == "-np" || *w == "--ranks").and(part.get(1))
            {
                let text = n.to_string_lossy();
                let n = hosts::ranks(&text).map_err(|why| wrong(&format!("-n {text}: {why}")))?;
                if n == 0 {
                    return Err(wrong("-n 0: a program has at least one rank"));
                }
                context.ranks = Some(n);
                context.command.drain(..2);
            }
            if context.command.first().is_some_and(|w| w == "--") {
                context.command.remove(0);
            }
        }
        match context.command.first() {
            None => return Err(wrong("there is no program between the colons")),
            Some(word) if word.as_encoded_bytes().starts_with(b"-") => {
                let word = word.to_string_lossy();
                return Err(wrong(&format!("invalid \"{word}\": expected -n or a program")));
            }
            Some(_) => {}
        }
        list.push(context);
    }
    if list.len() > 1 && list.iter().any(|c| c.ranks.is_none()) {
        return Err(Error::Invalid { what: "each of several programs needs its own -n".into() });
    }
    Ok(list)
}
