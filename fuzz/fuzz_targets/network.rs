//! Bytes from the network of a bootstrap and of RDMA devices: they are rejected, or are encoded as
//! they were decoded.

#![no_main]

use hostbuf_rdma::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [parser, bytes @ ..] = data else { return };
    match parser % 5 {
        0 => fuzzing::connect_message(bytes),
        1 => fuzzing::endpoint_info(bytes),
        2 => fuzzing::greeting(bytes),
        3 => fuzzing::records(bytes),
        _ => fuzzing::channel_requests(bytes),
    }
});
