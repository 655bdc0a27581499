//! The requested buffers of a rank as text and as a number, by which requests are compared.

use hostbuf::BufferOptions;

/// Returns the text of the requested buffers.
#[must_use]
pub fn text(buffers: &[BufferOptions]) -> String {
    buffers.iter().map(BufferOptions::request_text).collect::<Vec<_>>().join("/")
}

/// Returns the number of the requested buffers, which a rank sends to its agent.
#[must_use]
pub fn number(buffers: &[BufferOptions]) -> u64 {
    hash(text(buffers).as_bytes()) as u64
}

/// Returns 128 bits for the key, so that no two jobs of one user on one host collide.
#[must_use]
pub fn hash(key: &[u8]) -> u128 {
    let half = |basis: u64| {
        key.iter().fold(basis, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23))
    };
    u128::from(half(0xcbf2_9ce4_8422_2325)) << 64 | u128::from(half(0x8422_2325_cbf2_9ce4))
}
