//! The root of the preloaded object, which the build script of the command compiles: the
//! constructor, the panic handler and the memory functions that the compiler calls. The rest is the
//! crate `hostbuf_preload`, an ordinary library. `scripts/lint-others` lints this root.

#![no_std]
#![allow(unsafe_code, reason = "the constructor is called by the dynamic loader")]

mod memory;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = hostbuf_preload_start;

/// Starts the object before `main`. The linker is told to begin with this name.
#[unsafe(no_mangle)]
extern "C" fn hostbuf_preload_start() {
    hostbuf_preload::start();
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    hostbuf_preload::panicked()
}
