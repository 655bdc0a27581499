//! The division of files into windows and pieces.

use proptest::prelude::*;

use super::exchange::windows_of;
use super::window_pieces::{pieces, window};
use crate::table::TensorTable;
use crate::test_folder::TestFolder;
use hostbuf::job::HostIndex;

proptest! {
    #[test]
    fn each_byte_of_each_file_is_in_one_piece(
        lengths in proptest::collection::vec(0usize..30_000, 1..5),
        window_bits in 12u32..15,
        piece_pages in 1u64..4,
    ) {
        let folder = TestFolder::new("pieces");
        let file = |(number, &length): (usize, &usize)| folder.write(&format!("{number}.bin"), &vec![0; length]);
        let files: Vec<_> = lengths.iter().enumerate().map(file).collect();
        let table = TensorTable::read(&files).expect("the files are valid");
        let (window_bytes, region) = (1u64 << window_bits, table.region_bytes());
        let mut next = vec![0; files.len()];
        for number in 0..region.div_ceil(window_bytes) {
            let place = window(number, window_bytes, region);
            for piece in pieces(&table, place.clone(), piece_pages * 4096) {
                let length = piece.bytes.end - piece.bytes.start;
                prop_assert_eq!(piece.bytes.start, next[piece.file]);
                prop_assert!(length > 0 && length <= piece_pages * 4096);
                prop_assert!(piece.region_offset >= place.start && piece.region_offset + length <= place.end);
                let offset = table.files()[piece.file].region_offset;
                prop_assert_eq!(piece.region_offset, offset + piece.bytes.start);
                next[piece.file] = piece.bytes.end;
            }
        }
        let expected: Vec<u64> = lengths.iter().map(|&length| length as u64).collect();
        prop_assert_eq!(next, expected);
    }

    #[test]
    fn hosts_have_nearly_equal_numbers_of_windows(windows in 0u64..1000, hosts in 1usize..20) {
        let mut end = 0;
        for host in 0..hosts {
            let own = windows_of(HostIndex(host), hosts, windows);
            prop_assert_eq!(own.start, end);
            prop_assert!((own.end - own.start).abs_diff(windows / hosts as u64) <= 1);
            end = own.end;
        }
        prop_assert_eq!(end, windows);
    }
}
