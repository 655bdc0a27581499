//! The fields of a text such as `name=index,size=2G,numa=0,1,lazy`.

use crate::error::{Bytes, Error, Result};

/// Splits the text of a buffer or a section, which `kind` names, into fields.
///
/// # Errors
/// [`Error::Invalid`] if a key is given twice: neither value is certainly meant.
pub(super) fn unique<'a>(text: &'a str, kind: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let fields = split(text);
    for (at, (key, _)) in fields.iter().enumerate() {
        if fields[..at].iter().any(|(earlier, _)| earlier == key) {
            return Err(Error::invalid(format!(
                "\"{key}\" is given twice in {kind} \"{text}\": give it once"
            )));
        }
    }
    Ok(fields)
}

/// Splits a text at its commas into pairs of a key and a value, which is empty without an equals
/// sign. The values of `numa` and `gpu` may contain commas: a part that begins with a digit belongs
/// to them, and to `gpu` also each part that begins with no letter, since it can be no field.
fn split(text: &str) -> Vec<(&str, &str)> {
    let mut fields = Vec::new();
    let mut rest = Some(text);
    while let Some(from) = rest {
        let mut end = from.find(',').unwrap_or(from.len());
        if from.starts_with("numa=") || from.starts_with("gpu=") {
            let belongs = if from.starts_with("gpu=") { starts_without_letter } else { starts_with_digit };
            let continues = |at: usize| from[at..].strip_prefix(',').is_some_and(belongs);
            while continues(end) {
                end += 1 + from[end + 1..].find(',').unwrap_or(from.len() - end - 1);
            }
        }
        fields.push(from[..end].split_once('=').unwrap_or((&from[..end], "")));
        rest = from[end..].strip_prefix(',');
    }
    fields
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

fn starts_without_letter(text: &str) -> bool {
    !text.starts_with(char::is_alphabetic)
}

/// Parses a size.
///
/// # Errors
/// [`Error::Invalid`].
pub(super) fn size(text: &str) -> Result<u64> {
    let invalid = |why| Error::invalid(format!("invalid size \"{text}\": {why}"));
    Ok(text.parse::<Bytes>().map_err(invalid)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_nodes_is_one_field() {
        assert_eq!(
            split("name=a,numa=interleave:0,2-3/1,2,lazy,pages=2m"),
            [("name", "a"), ("numa", "interleave:0,2-3/1,2"), ("lazy", ""), ("pages", "2m")]
        );
        assert_eq!(split("numa=0,1"), [("numa", "0,1")]);
        assert_eq!(split("gpu=0,1,size=2"), [("gpu", "0,1"), ("size", "2")]);
        assert_eq!(split("gpu=0,,1,name=a"), [("gpu", "0,,1"), ("name", "a")]);
        assert_eq!(split("gpu=0,+1,"), [("gpu", "0,+1,")]);
        assert_eq!(split("size=1,2"), [("size", "1"), ("2", "")]);
        assert_eq!(split(""), [("", "")]);
        assert_eq!(split("numa=,"), [("numa", ""), ("", "")]);
    }
}
