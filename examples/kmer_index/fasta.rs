//! Reading FASTA files.

#![allow(unsafe_code, reason = "maps the input files")]

use std::fs::File;
use std::path::Path;

use hostbuf::{Error, Result};

/// A file: a genome, or a strain's contigs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file's name without folder and ending.
    pub name: String,
    /// The sequences, in the order of the file.
    pub records: Vec<FastaRecord>,
}

/// One sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastaRecord {
    /// The first word after `>`, which may be empty.
    pub name: String,
    /// The letters of all its lines, in upper case, which may be none.
    pub bases: Vec<u8>,
}

impl Source {
    /// Returns the number of letters of all records.
    pub fn bases(&self) -> u64 {
        self.records.iter().map(|r| r.bases.len() as u64).sum()
    }
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read, or is not FASTA: with its path, and the line where that is known.
pub fn read(path: &Path) -> Result<Source> {
    let os = |source| Error::Os { doing: format!("reading {}", path.display()), source };
    let file = File::open(path).map_err(os)?;
    let about = file.metadata().map_err(os)?;
    let not_fasta = |why: String| Error::Invalid { what: format!("{} is not FASTA: {why}", path.display()) };
    if !about.is_file() {
        return Err(not_fasta("it is no ordinary file".into()));
    }
    if about.len() == 0 {
        return Err(not_fasta("it is empty".into()));
    }
    // SAFETY: the mapping is only read, and dropped when this function returns; input files do not
    // change during a run.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.map_err(os)?;
    let records = parse(&bytes).map_err(not_fasta)?;
    let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    Ok(Source { name, records })
}

/// Parses the records of a file. The error is a description of the malformed part.
fn parse(bytes: &[u8]) -> std::result::Result<Vec<FastaRecord>, String> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err("it is compressed; unpack it first (gunzip)".into());
    }
    let mut records: Vec<FastaRecord> = Vec::new();
    for (line, number) in bytes.split(|&b| b == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if let [b'>', header @ ..] = line {
            let header = String::from_utf8_lossy(header);
            let name = header.split_whitespace().next().unwrap_or("").into();
            records.push(FastaRecord { name, bases: Vec::new() });
        } else if !line.is_empty() {
            let Some(record) = records.last_mut() else {
                return Err(format!("line {number} comes before the first line that begins with '>'"));
            };
            // Besides letters, '-' is a gap and '*' a stop.
            if let Some(wrong) = line.iter().find(|b| !b.is_ascii_alphabetic() && !b"-*".contains(b)) {
                return Err(format!("line {number} contains '{}'", wrong.escape_ascii()));
            }
            record.bases.extend(line.iter().map(u8::to_ascii_uppercase));
        }
    }
    if records.is_empty() {
        return Err("no line begins with '>'".into());
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let text_of = |r: FastaRecord| (r.name, String::from_utf8(r.bases).unwrap());
        parse(text.as_bytes()).unwrap().into_iter().map(text_of).collect()
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|&(a, b)| (a.into(), b.into())).collect()
    }

    #[test]
    fn lines_are_joined_and_upper_case() {
        assert_eq!(parsed(">a b c\nACgt\nnRy\n>d\nTT"), pairs(&[("a", "ACGTNRY"), ("d", "TT")]));
    }

    #[test]
    fn line_ends_and_blank_lines_do_not_matter() {
        let one = pairs(&[("a", "ACGT"), ("b", "T")]);
        for text in [
            ">a\nAC\nGT\n>b\nT\n",
            ">a\r\nAC\r\nGT\r\n>b\r\nT\r\n",
            "\n\n>a x\nACGT\n\n>b\n T \n\n",
            "> a\nACGT\n>b\nT",
        ] {
            assert_eq!(parsed(text), one, "{text:?}");
        }
    }

    #[test]
    fn records_may_be_empty_and_nameless() {
        assert_eq!(parsed(">\n>b\n>c\nA"), pairs(&[("", ""), ("b", ""), ("c", "A")]));
    }

    #[test]
    fn malformed_input_gives_the_reason() {
        for (bytes, word) in [
            (&b"hello\n>a\nA"[..], "line 1 "),
            (b"\n\n", "no line"),
            (b">a\nAC\nA1C", "line 3 contains '1'"),
            (b">a\n\xff\xfe", "'\\xff'"),
            (b"\x1f\x8b\x08", "gunzip"),
            (b"@read\nACGT\n+\nIIII", "line 1 "),
        ] {
            let why = parse(bytes).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
