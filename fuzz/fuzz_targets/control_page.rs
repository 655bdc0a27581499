//! A control page that another process has overwritten: errors, but no wild offset and no crash.
//! And the identity file, for which the same holds although no process can write to it.

#![no_main]
#![allow(unsafe_code, reason = "maps a control page over bytes of its own")]

use std::ops::Range;

use hostbuf::Pages;
use hostbuf::segment::{BufferIdentity, Control, ControlLayout, Identity, Ledger};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::Xxh3;

const BUFFERS: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct PageLine([u8; 64]);

/// Decodes an identity. An accepted one is encoded and decoded again.
fn decode(bytes: &[u8]) {
    if let Ok((identity, layout)) = Identity::decode(bytes) {
        assert_eq!(Identity::decode(&identity.encode()).expect("it was valid").0, identity);
        assert!(layout.length() > 0);
    }
}

/// Returns an identity file that `data` has changed, with a checksum that matches: the input alone
/// would hardly ever pass the check of it.
fn with_checksum(data: &[u8]) -> Vec<u8> {
    const CHECKSUM: Range<usize> = 24..32;
    let mut identity = Identity::new(7);
    (identity.address, identity.length) = (1 << 40, 1 << 30);
    identity.buffers = (0..2).map(|_| BufferIdentity::new("b", Pages::Small)).collect();
    let mut bytes = identity.encode();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
    }
    let length = u64::from_ne_bytes(bytes[16..24].try_into().expect("eight bytes")) as usize;
    if let Some(behind) = bytes.get(CHECKSUM.end..length) {
        let mut hash = Xxh3::new();
        hash.update(&bytes[..CHECKSUM.start]);
        hash.update(behind);
        let digest = hash.digest();
        bytes[CHECKSUM].copy_from_slice(&digest.to_ne_bytes());
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    decode(data);
    decode(&with_checksum(data));
    let layout = ControlLayout::new(BUFFERS);
    let mut page = vec![PageLine([0; 64]); layout.length() as usize / 64];
    // SAFETY: the page is aligned, has the right length, and outlives the handle.
    let control = unsafe { Control::at(page.as_mut_ptr() as usize, layout) };
    (0..BUFFERS).for_each(|index| control.reset(index));
    // Pairs of a position and a byte, over a valid page.
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % (page.len() * 64);
        page[at / 64].0[at % 64] ^= change[2];
    }
    for index in 0..BUFFERS {
        let _ =
            (control.fill(index), control.generation(index), control.retained(index), control.root(index));
        if let Ok(mark) = control.high_water(index) {
            assert!(mark < 1 << 48);
        }
    }
    let _ = control.phases();
    let ledger = Ledger::new(control);
    let _ = ledger.unlisted();
    for registered in ledger.registrations().into_iter().flatten() {
        assert!(registered.offset.checked_add(registered.length).is_some());
        assert!(registered.index < BUFFERS && registered.device.len() <= 3 * 23);
    }
});
