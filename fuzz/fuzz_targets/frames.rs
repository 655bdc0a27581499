//! Frames between ranks and agents: a packet is rejected, or every part of it is in bounds and is
//! written as it was read.

#![no_main]

use hostbuf_protocol::ballot::candidates_of;
use hostbuf_protocol::wire::{Coverage, Frame, Hello, Winner};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| {
    // The length is fixed, so short inputs are filled up.
    let mut whole = packet.to_vec();
    whole.resize(Frame::SIZE, 0);
    for packet in [packet, &whole] {
        let Some(frame) = Frame::parse(packet) else { continue };
        assert!(frame.text().len() <= Frame::TEXT_MAX);
        assert!(candidates_of(&frame).as_slice().len() <= hostbuf_protocol::wire::MAX_CANDIDATES);
        let _ = Coverage::from_word(frame.words[1]);
        if let Some(hello) = Hello::parse(&frame) {
            assert_eq!(Hello::parse(&hello.frame()), Some(hello));
        }
        if let Some(winner) = Winner::parse(&frame) {
            for buffer in winner.buffers.as_slice() {
                assert!(buffer.offset + buffer.length <= winner.length);
            }
            assert!(winner.control + winner.control_length <= winner.length);
            assert_eq!(Winner::parse(&winner.frame()), Some(winner));
        }
    }
});
