//! Tokens: the names of published blocks.
//!
//! A token is 48 bytes, which a producer sends to its consumers by any transport. All numbers are
//! little-endian.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 3 | the letters `hbt` |
//! | 3 | 1 | the version of the format, 1 |
//! | 4 | 4 | the number of the block in its segment |
//! | 8 | 16 | the identity of the pool |
//! | 24 | 8 | the generation of the block |
//! | 32 | 8 | the length of the content in bytes |
//! | 40 | 4 | the number of the segment in its pool |
//! | 44 | 4 | the lower half of the XXH3 hash of the 44 bytes before |

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

use crate::pool_id::PoolId;

const MAGIC: [u8; 3] = *b"hbt";
const VERSION: u8 = 1;
/// The number of bytes in front of the hash.
const HASHED: usize = 44;

/// The name of a published block. It stays valid until the producer reuses the block, and never
/// names anything else: pools have random identities, and a block counts its generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// Exhaustive: a version of the format has these fields.
pub struct Token {
    /// The identity of the pool.
    pub pool: PoolId,
    /// The number of the segment in its pool.
    pub segment: u32,
    /// The number of the block in its segment.
    pub block: u32,
    /// The generation of the block: the number of times that it was taken before.
    pub generation: u64,
    /// The length of the content in bytes.
    pub length: u64,
}

/// Bytes or a text that are no token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidToken {
    /// The input has this number of bytes, not [`Token::SIZE`].
    Size(usize),
    /// The input does not begin as a token does.
    NoToken,
    /// The token has this version of the format, which this build does not read.
    OtherVersion(u8),
    /// The hash is wrong: some of the bytes have changed.
    Damaged,
    /// The text contains something other than hexadecimal digits.
    NotHexadecimal,
}

impl Token {
    /// The size of an encoded token in bytes.
    pub const SIZE: usize = 48;

    /// Encodes the token.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Token::SIZE] {
        let mut bytes = [0; Token::SIZE];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3] = VERSION;
        bytes[4..8].copy_from_slice(&self.block.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.pool.to_bits().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.generation.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.length.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.segment.to_le_bytes());
        let hash = hash(&bytes);
        bytes[44..].copy_from_slice(&hash);
        bytes
    }

    /// Decodes a token.
    ///
    /// # Errors
    /// [`InvalidToken`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Token, InvalidToken> {
        let bytes: &[u8; Token::SIZE] = bytes.try_into().map_err(|_| InvalidToken::Size(bytes.len()))?;
        if bytes[..3] != MAGIC {
            return Err(InvalidToken::NoToken);
        }
        if bytes[3] != VERSION {
            return Err(InvalidToken::OtherVersion(bytes[3]));
        }
        if bytes[HASHED..] != hash(bytes) {
            return Err(InvalidToken::Damaged);
        }
        Ok(Token {
            pool: PoolId::from_bits(u128::from_le_bytes(part(bytes, 8))),
            segment: u32::from_le_bytes(part(bytes, 40)),
            block: u32::from_le_bytes(part(bytes, 4)),
            generation: u64::from_le_bytes(part(bytes, 24)),
            length: u64::from_le_bytes(part(bytes, 32)),
        })
    }
}

fn part<const N: usize>(bytes: &[u8; Token::SIZE], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("all fields lie within the token")
}

fn hash(bytes: &[u8; Token::SIZE]) -> [u8; Token::SIZE - HASHED] {
    (xxh3_64(&bytes[..HASHED]) as u32).to_le_bytes()
}

/// Formats the token as 96 hexadecimal digits, for transports of text.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Token, InvalidToken> {
        if text.len() != 2 * Token::SIZE {
            return Err(InvalidToken::Size(text.len() / 2));
        }
        let mut bytes = [0; Token::SIZE];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| char::from(digits[at]).to_digit(16).ok_or(InvalidToken::NotHexadecimal);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Token::from_bytes(&bytes)
    }
}

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidToken::Size(size) => {
                write!(f, "invalid token of {size} bytes: expected {} bytes", Token::SIZE)
            }
            InvalidToken::NoToken => f.write_str("the bytes are no token of a pool"),
            InvalidToken::OtherVersion(version) => {
                write!(
                    f,
                    "the token has version {version} of the format, and this hostbuf reads {VERSION}: use one version of hostbuf"
                )
            }
            InvalidToken::Damaged => f.write_str("the token is damaged: its hash is wrong"),
            InvalidToken::NotHexadecimal => f.write_str("invalid token: expected hexadecimal digits"),
        }
    }
}

impl std::error::Error for InvalidToken {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens() -> impl Strategy<Value = Token> {
        any::<(u128, u32, u32, u64, u64)>().prop_map(|(pool, segment, block, generation, length)| Token {
            pool: PoolId::from_bits(pool),
            segment,
            block,
            generation,
            length,
        })
    }

    proptest! {
        #[test]
        fn a_token_survives_bytes_and_text(token in tokens()) {
            prop_assert_eq!(Token::from_bytes(&token.to_bytes()), Ok(token));
            prop_assert_eq!(token.to_string().parse(), Ok(token));
        }

        #[test]
        fn every_flipped_bit_is_noticed(token in tokens(), at in 0..Token::SIZE, bit in 0..8u32) {
            let mut bytes = token.to_bytes();
            bytes[at] ^= 1u8 << bit;
            let expected = match at {
                0..3 => InvalidToken::NoToken,
                3 => InvalidToken::OtherVersion(bytes[3]),
                _ => InvalidToken::Damaged,
            };
            prop_assert_eq!(Token::from_bytes(&bytes), Err(expected));
        }
    }

    /// The format is documented for other programs, so it must not change by accident.
    #[test]
    fn the_format_is_that_of_the_documentation() {
        let token = Token {
            pool: PoolId::from_bits(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100),
            segment: 0x43_42_41_40,
            block: 0x17_16_15_14,
            generation: 0x2726_2524_2322_2120,
            length: 0x3736_3534_3332_3130,
        };
        let bytes = token.to_bytes();
        assert_eq!(bytes[..8], *b"hbt\x01\x14\x15\x16\x17");
        assert!(bytes[8..24].iter().enumerate().all(|(i, byte)| usize::from(*byte) == i));
        assert!(bytes[24..32].iter().zip(0x20..).all(|(byte, expected)| *byte == expected));
        assert!(bytes[32..40].iter().zip(0x30..).all(|(byte, expected)| *byte == expected));
        assert!(bytes[40..44].iter().zip(0x40..).all(|(byte, expected)| *byte == expected));
        assert_eq!(bytes[44..], (xxh3_64(&bytes[..44]) as u32).to_le_bytes());
    }

    #[test]
    fn other_inputs_are_refused() {
        let error = |bytes: &[u8]| Token::from_bytes(bytes).unwrap_err();
        assert_eq!(error(&[0; 47]), InvalidToken::Size(47));
        assert_eq!(error(&[0; 48]), InvalidToken::NoToken);
        assert_eq!("ab".parse::<Token>(), Err(InvalidToken::Size(1)));
        assert_eq!("é".repeat(48).parse::<Token>(), Err(InvalidToken::NotHexadecimal));
    }
}
