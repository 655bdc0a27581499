//! The parser of /proc/self/maps: the same mappings however the text is cut, and a hole that is
//! free.

#![no_main]

use hostbuf_raw::maps::{HoleSearch, Parser};
use libfuzzer_sys::fuzz_target;

fn parse(pieces: &[&[u8]]) -> Vec<(usize, usize, bool, bool, Vec<u8>)> {
    let mut parser = Parser::default();
    let mut found = Vec::new();
    for piece in pieces {
        parser.feed(piece, &mut |mapped| {
            found.push((mapped.start, mapped.end, mapped.readable, mapped.writable, mapped.path.to_vec()));
            true
        });
    }
    found
}

fuzz_target!(|input: (&[u8], usize)| {
    let (text, cut) = input;
    let whole = parse(&[text]);
    let (first, second) = text.split_at(cut % (text.len() + 1));
    assert_eq!(parse(&[first, second]), whole);
    const LENGTH: usize = 1 << 21;
    let mut search = HoleSearch::new(0x1_0000, LENGTH, LENGTH, 0x7fff_ffff_f000);
    let mut mappings: Vec<_> = whole.iter().filter(|m| m.0 < m.1).map(|m| (m.0, m.1)).collect();
    mappings.sort_unstable();
    let _ = mappings.iter().all(|&(start, end)| search.pass(start, end));
    if let Some(hole) = search.found() {
        assert!(hole.is_multiple_of(LENGTH));
        assert!(mappings.iter().all(|&(start, end)| end <= hole || hole + LENGTH <= start));
    }
});
