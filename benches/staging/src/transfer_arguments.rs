//! The arguments of a command that reads or writes a file.

use hostbuf_os::Bytes;
use hostbuf_staging::Backend;

/// The number of rounds unless the command line has one.
const ROUNDS: usize = 7;

/// The arguments of a command that reads or writes a file.
#[derive(Debug)]
pub(crate) struct TransferArguments {
    /// True if the option without a value is given.
    pub(crate) has_flag: bool,
    pub(crate) backends: Vec<Backend>,
    /// The number of bytes of `--size`.
    pub(crate) bytes: Option<u64>,
    pub(crate) path: String,
    pub(crate) rounds: usize,
}

impl TransferArguments {
    /// Parses the arguments of a command whose option without a value is `flag`.
    ///
    /// # Errors
    /// The invalid argument.
    pub(crate) fn parse(
        mut arguments: impl Iterator<Item = String>,
        flag: &str,
    ) -> Result<TransferArguments, String> {
        let (mut has_flag, mut backends, mut bytes, mut operands) = (false, Vec::new(), None, Vec::new());
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                given if given == flag => has_flag = true,
                "--backend" => {
                    backends.push(arguments.next().ok_or("--backend needs a name")?.parse::<Backend>()?);
                }
                "--size" => bytes = Some(size(&arguments.next().ok_or("--size needs a number of bytes")?)?),
                option if option.starts_with('-') => return Err(format!("unexpected option {option}")),
                _ => operands.push(argument),
            }
        }
        let (path, rounds) = file_and_rounds(operands.into_iter())?;
        Ok(TransferArguments { has_flag, backends, bytes, path, rounds })
    }
}

/// Parses the value of `--size`.
fn size(text: &str) -> Result<u64, String> {
    match text.parse::<Bytes>() {
        Ok(Bytes(0)) => Err("invalid size 0: expected at least 1 byte".to_owned()),
        Ok(Bytes(bytes)) => Ok(bytes),
        Err(why) => Err(format!("invalid size \"{text}\": {why}")),
    }
}

/// Parses a file, and the number of rounds.
///
/// # Errors
/// The invalid argument.
pub(crate) fn file_and_rounds(arguments: impl Iterator<Item = String>) -> Result<(String, usize), String> {
    let mut operands: Vec<String> = arguments.collect();
    let rounds = match &operands[..] {
        [_] => ROUNDS,
        [_, rounds] => match rounds.parse() {
            Ok(rounds) if rounds > 0 => rounds,
            _ => return Err(format!("invalid number of rounds {rounds}: expected 1 or more")),
        },
        _ => return Err("expected a file".to_owned()),
    };
    Ok((operands.swap_remove(0), rounds))
}
