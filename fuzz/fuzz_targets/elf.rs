//! ELF images: a damaged file is no image, or one whose parts are in bounds.

#![no_main]

use hostbuf_cli::elf::Elf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|image: &[u8]| {
    // Half of the inputs begin as a 64-bit image does, so that the rest is reached.
    let mut whole = b"\x7fELF\x02\x01".to_vec();
    whole.extend(image);
    for image in [image, &whole] {
        let part =
            |offset: usize, bytes: usize| image.get(offset..offset.checked_add(bytes)?).map(<[u8]>::to_vec);
        if let Some(elf) = Elf::parse(&part) {
            assert!(elf.fixed_segments.iter().all(|&(start, end)| start <= end));
        }
    }
});
