//! A control page that another process has overwritten: errors, but no wild offset and no crash.

#![no_main]

use hostbuf::segment::{CONTROL_LENGTH, Control, Identity, Ledger};
use libfuzzer_sys::fuzz_target;

#[repr(C, align(4096))]
struct Page([u8; CONTROL_LENGTH as usize]);

fuzz_target!(|data: &[u8]| {
    let mut page = Box::new(Page([0; CONTROL_LENGTH as usize]));
    // SAFETY: the page is aligned, has the right length, and outlives the handle.
    let control = unsafe { Control::at(&raw mut *page as usize) };
    control.publish(Identity::new(7));
    control.reset(0);
    // Pairs of a position and a byte, over a valid page.
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % page.0.len();
        page.0[at] ^= change[2];
    }
    if let Ok(identity) = control.identity() {
        for buffer in identity.buffers() {
            let _ = (buffer.name(), buffer.pages());
        }
    }
    for index in 0..16 {
        let _ = (control.fill(index), control.generation(index), control.retained(index), control.root(index));
        if let Ok(mark) = control.high_water(index) {
            assert!(mark < 1 << 48);
        }
    }
    let ledger = Ledger::new(control);
    let _ = ledger.unlisted();
    for registered in ledger.registrations().into_iter().flatten() {
        assert!(registered.offset.checked_add(registered.length).is_some());
        assert!(registered.device.len() <= 3 * 23);
    }
});
