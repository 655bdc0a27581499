//! The identity of the protocol in zenoh.

use hostbuf_pool::PoolId;
use xxhash_rust::xxh3::xxh3_64;
use zenoh::shm::ProtocolID;

/// Returns zenoh's number for the protocol of a pool: 31 bits of a hash of its identity, with the
/// highest bit set.
///
/// Each pool has a protocol of its own, since a session announces a protocol only if it can map
/// everything that comes by it: an error while mapping loses a message without a word. A session
/// of another broker, such as one in another container, gets copies.
#[must_use]
pub fn protocol_id(pool: PoolId) -> ProtocolID {
    xxh3_64(&pool.to_bits().to_le_bytes()) as u32 | 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_have_protocols_of_their_own() {
        let first = protocol_id(PoolId::from_bits(1));
        assert_ne!(first, protocol_id(PoolId::from_bits(2)));
        assert_eq!(first, protocol_id(PoolId::from_bits(1)));
        // zenoh's own has the number 0.
        assert!(first > i32::MAX as u32);
    }
}
