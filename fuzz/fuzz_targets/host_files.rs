//! Host files and lists of hosts: an accepted list is printed in a form that reads as the same.

#![no_main]

use std::path::Path;

use hostbuf_cli::hosts;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for parsed in [hosts::parse(text), hosts::from_text(text, Path::new("hosts"))].into_iter().flatten() {
        assert!(!parsed.is_empty() && parsed.iter().all(|host| !host.name.is_empty() && host.slots > 0));
        // A comma separates hosts in a list, and is part of a name in a file.
        if parsed.iter().all(|host| !host.name.contains(',')) {
            assert_eq!(hosts::parse(&hosts::list(&parsed)).ok(), Some(parsed));
        }
    }
});
