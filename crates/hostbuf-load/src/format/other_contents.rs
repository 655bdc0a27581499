//! The contents that a file often has instead of those that its name announces.

use crate::error::FileProblem;

/// The number of bytes from which [`problem_of`] recognises all contents.
pub(crate) const BEGINNING: usize = 512;
/// The beginning of a pointer of Git LFS.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
/// The beginnings of pages, in lower case.
const PAGES: [&[u8]; 4] = [b"<!doctype html", b"<html", b"<head", b"<?xml"];

/// Returns the problem of a file that is not valid, if its beginning shows that it is empty, a
/// pointer of Git LFS, or a page of a server.
pub(crate) fn problem_of(beginning: &[u8]) -> Option<FileProblem> {
    let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(beginning).trim_ascii_start();
    let is_page = |page: &&[u8]| text.get(..page.len()).is_some_and(|start| start.eq_ignore_ascii_case(page));
    match () {
        () if beginning.is_empty() => Some(FileProblem::Empty),
        () if beginning.starts_with(LFS_POINTER) => Some(FileProblem::LfsPointer),
        () if PAGES.iter().any(is_page) => Some(FileProblem::Page),
        () => None,
    }
}
