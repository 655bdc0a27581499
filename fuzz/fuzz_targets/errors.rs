//! Errors between processes: bytes are rejected, or the error is written as it was read.

#![no_main]

use hostbuf_protocol::failure::ErrorRecord;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(record) = ErrorRecord::decode(bytes) else { return };
    let mut written = [0; ErrorRecord::SIZE];
    let length = record.encode(&mut written);
    let fit =
        record.operands.concat().len() + record.line.len() + record.host.len() + 22 <= ErrorRecord::SIZE;
    let operands = if fit { record.operands } else { Default::default() };
    assert_eq!(ErrorRecord::decode(&written[..length]), Some(ErrorRecord { operands, ..record }));
});
