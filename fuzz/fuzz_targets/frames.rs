//! Frames between ranks and agents: a packet is rejected, or every part of its message is in bounds
//! and is written as it was read.

#![no_main]

use hostbuf_protocol::frame::{FRAME_MAX, FrameRef, FrameWriter};
use hostbuf_protocol::limits::{MAX_BUFFERS, TEXT_MAX};
use hostbuf_protocol::message::Message;
use libfuzzer_sys::fuzz_target;

fn check(packet: &[u8]) {
    let Ok(message) = Message::parse(packet) else { return };
    let mut buffer = [0; FRAME_MAX];
    let again = message.encode(&mut buffer);
    assert_eq!(Message::parse(again), Ok(message));
    match message {
        Message::Agreed { range, report } => {
            assert!(range.buffers.count() <= MAX_BUFFERS && report.len() <= TEXT_MAX);
            for buffer in range.buffers.iter() {
                assert!(buffer.part.offset + buffer.part.length <= range.length);
            }
            assert!(range.control.offset + range.control.length <= range.length);
        }
        Message::Hello { command, .. } => assert!(command.len() <= TEXT_MAX),
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    check(data);
    // The same bytes as the fields of a frame with a valid head.
    let [kind, fields @ ..] = data else { return };
    let mut buffer = [0; FRAME_MAX];
    let mut frame = FrameWriter::new(&mut buffer, u16::from(*kind)).expect("there is room");
    let mut rest = fields;
    while let [tag, length, values @ ..] = rest {
        let (value, behind) = values.split_at(usize::from(*length).min(values.len()));
        // The tags of this build, and some others.
        let tag = u16::from(tag & 7) | u16::from(tag & 0x80) << 8;
        if frame.push(tag, &[value]).is_err() {
            break;
        }
        rest = behind;
    }
    let packet = frame.finish().to_vec();
    assert!(FrameRef::parse(&packet).is_ok());
    check(&packet);
});
