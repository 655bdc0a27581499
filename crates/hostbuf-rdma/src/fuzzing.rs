//! The parsers of bytes from the network, for the target `network` in fuzz/fuzz_targets. The crate
//! has this module only if a fuzzer compiles it (`cfg(fuzzing)`).

use std::io::{ErrorKind, Read};

use crate::connect::connect_message::{ConnectBody, ConnectMessage, sealed};
use crate::connect::endpoint_info::{self, EndpointInfo};
use crate::connect::greeting::{self, Greeting};
use crate::connect::record_stream::{self, MAX_RECORD};
use crate::messages::channel_requests::{self, ChannelRequests};

/// Checks that `bytes`, and the same bytes with a valid checksum, are rejected or are a connect
/// message that is encoded as it was decoded.
pub fn connect_message(bytes: &[u8]) {
    let with_checksum = sealed(bytes);
    for bytes in [bytes, &with_checksum] {
        let Some(message) = ConnectMessage::decode(bytes) else { continue };
        let encoded = message.encode();
        assert_eq!(ConnectMessage::decode(&encoded), Some(message));
        // A rejection has no queue pair: its bytes are ignored.
        assert!(message.body == ConnectBody::Reject || encoded == bytes);
    }
}

/// Checks that `bytes`, and the same bytes behind the magic number, are rejected or are the record
/// of an endpoint that is encoded as it was decoded.
pub fn endpoint_info(bytes: &[u8]) {
    for bytes in [bytes, &[&endpoint_info::MAGIC, bytes].concat()] {
        let Some(info) = EndpointInfo::decode(bytes) else { continue };
        let encoded = info.encode();
        // A name that is not UTF-8 becomes another one.
        assert!(encoded == bytes || info.host.contains(char::REPLACEMENT_CHARACTER));
        assert_eq!(EndpointInfo::decode(&encoded), Some(info));
    }
}

/// Checks that a greeting, with any head and with the head of this version, has the same meaning in
/// any number of parts.
pub fn greeting(bytes: &[u8]) {
    greeting_in_parts(bytes);
    greeting_in_parts(&[&greeting::head(), bytes].concat());
}

fn greeting_in_parts(bytes: &[u8]) {
    let mut seen = None;
    for received in (0..=bytes.len()).map(|end| &bytes[..end]) {
        match Greeting::decode(received) {
            Ok(greeting) => {
                assert!(seen.is_none() || greeting == seen, "{seen:?} became {greeting:?}");
                seen = greeting;
            }
            Err(error) => {
                assert_eq!((error.kind(), seen), (ErrorKind::InvalidData, None));
                return;
            }
        }
    }
    if let Some(Greeting::Process { peer, count }) = seen {
        let encoded = Greeting::encode(peer, count);
        assert!(bytes.starts_with(&encoded));
    }
}

/// Checks that a stream ends with an error, and that the records in front are those in `bytes`.
pub fn records(bytes: &[u8]) {
    let mut stream = bytes;
    loop {
        let before = stream;
        match record_stream::decode(|part| stream.read_exact(part)) {
            Ok(record) => {
                assert!(record.len() <= MAX_RECORD);
                assert!(before.starts_with(&record_stream::encode(&record)));
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData));
                return;
            }
        }
    }
}

/// Checks that the records in `bytes` are rejected, or are requests that are decoded as they were
/// encoded and can be compared with each other.
pub fn channel_requests(bytes: &[u8]) {
    let mut stream = bytes;
    let mut all = Vec::new();
    while let Ok(record) = record_stream::decode(|part| stream.read_exact(part)) {
        let Some((requests, layout)) = channel_requests::decode(&record) else { continue };
        assert_eq!(channel_requests::encode(&requests, layout), record);
        all.push(requests);
    }
    // Any result is right: the requests of one process may contradict those of another.
    let _ = ChannelRequests::of(all).check();
}
