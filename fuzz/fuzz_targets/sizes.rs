//! Sizes, pages, buffers and devices on the command line: an accepted value is printed in a form
//! that reads as the same value.

#![no_main]

use hostbuf::{BufferOptions, Bytes, Pages};
use hostbuf_register::DeviceList;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = text.parse::<Bytes>();
    if let Ok(pages) = text.parse::<Pages>() {
        assert_eq!(pages.to_string().parse::<Pages>().ok(), Some(pages));
    }
    if let Ok(options) = text.parse::<BufferOptions>() {
        assert_eq!(options.to_string().parse::<BufferOptions>().ok(), Some(options));
    }
    if let Ok(devices) = text.parse::<DeviceList>() {
        assert_eq!(devices.to_string().parse::<DeviceList>().ok(), Some(devices));
    }
});
