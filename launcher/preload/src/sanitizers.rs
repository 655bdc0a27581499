//! The sanitizers whose runtime is in this process.

#![allow(unsafe_code, reason = "reads words that the assembly declares")]

use hostbuf_protocol::message::AddressWindow;

// Weak references: null unless a sanitizer's runtime is in the process.
core::arch::global_asm!(
    ".weak __tsan_init",
    ".weak __msan_init",
    ".pushsection .data.rel.ro,\"aw\"",
    ".balign 8",
    ".hidden hostbuf_sanitizers",
    "hostbuf_sanitizers: .quad __tsan_init",
    ".quad __msan_init",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "hostbuf_sanitizers"]
    static SANITIZERS: [usize; 2];
}

/// Returns the part of the address space that is left to this process.
pub(crate) fn address_window() -> AddressWindow {
    // SAFETY: two words, written by the dynamic linker before any constructor runs.
    let [thread, memory] = unsafe { SANITIZERS };
    if thread == 0 && memory == 0 { AddressWindow::Anywhere } else { AddressWindow::Sanitized }
}
