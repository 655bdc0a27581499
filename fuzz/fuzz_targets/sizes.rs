//! Sizes, pages, buffers, placements, sections and devices on the command line: an accepted value
//! is printed in a form that reads as the same value.

#![no_main]

use hostbuf::segment::{SectionArgument, add_sections, check_all};
use hostbuf::{BufferOptions, Bytes, Pages, Placement};
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
    if let Ok(placement) = text.parse::<Placement>() {
        assert_eq!(placement.to_string().parse::<Placement>().ok(), Some(placement));
    }
    if let Ok(section) = text.parse::<SectionArgument>() {
        assert_eq!(section.to_string().parse::<SectionArgument>().ok(), Some(section.clone()));
        let mut buffers = [BufferOptions::new(0).name(section.buffer.clone())];
        let _ = add_sections(&mut buffers, [section]).and_then(|()| check_all(&buffers));
        let _ = (buffers[0].requested(), buffers[0].demand().length());
    }
});
