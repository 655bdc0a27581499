//! A control page that another process has overwritten: errors, but no wild offset and no crash.
//! And the identity file, for which the same holds although no process can write to it.

#![no_main]

use hostbuf::segment::{Control, ControlLayout, Identity, Ledger};
use libfuzzer_sys::fuzz_target;

const BUFFERS: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fuzz_target!(|data: &[u8]| {
    if let Ok((identity, layout)) = Identity::decode(data) {
        assert_eq!(Identity::decode(&identity.encode()).expect("it was valid").0, identity);
        assert!(layout.length() > 0);
    }
    let layout = ControlLayout::new(BUFFERS);
    let mut page = vec![Line([0; 64]); layout.length() as usize / 64];
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
