//! The answer of a receiver to a frame.

use std::time::Duration;

use hostbuf_pool::Token;

use super::InvalidRecord;
use super::fields::{check, number, part, put, seal};
use crate::refusal::MirrorRefusal;

const MAGIC: [u8; 8] = *b"hbmansw\0";
/// The largest length of a text in bytes.
const MAX_TEXT: usize = FrameAnswer::SIZE - 96;

const PUBLISHED: u32 = 0;
const FULL: u32 = 1;
const NOT_NEWER: u32 = 2;
const POOL: u32 = 3;

/// The answer of a receiver to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameAnswer {
    /// The number of the frame in its session.
    pub(crate) number: u64,
    /// The answer.
    pub(crate) kind: AnswerKind,
}

/// The content of an answer: the token of the copy, or the reason why there is none.
pub(crate) type AnswerKind = Result<Token, MirrorRefusal>;

impl FrameAnswer {
    /// The size of the record in bytes.
    pub(crate) const SIZE: usize = 1024;

    /// Encodes the record. A text is shortened to what the record can hold.
    pub(crate) fn encode(&self) -> [u8; FrameAnswer::SIZE] {
        let mut record = [0; FrameAnswer::SIZE];
        let (code, token, value, text) = match &self.kind {
            Ok(token) => (PUBLISHED, Some(token), 0, ""),
            Err(MirrorRefusal::Full { waited, details }) => {
                (FULL, None, u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), details.as_str())
            }
            Err(MirrorRefusal::NotNewer { published, copy }) => (NOT_NEWER, copy.as_deref(), *published, ""),
            Err(MirrorRefusal::Pool { why }) => (POOL, None, 0, why.as_str()),
        };
        let length =
            (0..=MAX_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        put(&mut record, 0, MAGIC);
        put(&mut record, 8, self.number.to_le_bytes());
        put(&mut record, 16, code.to_le_bytes());
        put(&mut record, 20, (length as u32).to_le_bytes());
        put(&mut record, 24, value.to_le_bytes());
        if let Some(token) = token {
            put(&mut record, 32, token.to_bytes());
        }
        record[80..80 + length].copy_from_slice(&text.as_bytes()[..length]);
        seal(&mut record);
        record
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// [`InvalidRecord`].
    pub(crate) fn decode(record: &[u8; FrameAnswer::SIZE]) -> Result<FrameAnswer, InvalidRecord> {
        check(record, MAGIC)?;
        let damaged = InvalidRecord::Damaged;
        let token = match record[32..80].iter().all(|byte| *byte == 0) {
            true => None,
            false => Some(
                Token::from_bytes(&record[32..80]).map_err(|_| damaged("an answer has an invalid token"))?,
            ),
        };
        let length = u32::from_le_bytes(part(record, 20)) as usize;
        if length > MAX_TEXT {
            return Err(damaged("an answer has too long a text"));
        }
        let text = String::from_utf8_lossy(&record[80..80 + length]).into_owned();
        let value = number(record, 24);
        let kind = match u32::from_le_bytes(part(record, 16)) {
            PUBLISHED => Ok(token.ok_or(damaged("an answer has no token"))?),
            FULL => Err(MirrorRefusal::Full { waited: Duration::from_micros(value), details: text }),
            NOT_NEWER => Err(MirrorRefusal::NotNewer { published: value, copy: token.map(Box::new) }),
            POOL => Err(MirrorRefusal::Pool { why: text }),
            _ => return Err(damaged("an answer has an unknown code")),
        };
        Ok(FrameAnswer { number: number(record, 8), kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_pool::PoolId;
    use proptest::prelude::*;

    fn token() -> Token {
        Token { pool: PoolId::from_bits(7), segment: 1, block: 2, generation: 3, length: 4 }
    }

    #[test]
    fn answers_survive_the_wire() {
        let refusals = [
            MirrorRefusal::Full { waited: Duration::from_millis(5), details: "of 2 blocks".into() },
            MirrorRefusal::NotNewer { published: 9, copy: None },
            MirrorRefusal::NotNewer { published: 9, copy: Some(Box::new(token())) },
            MirrorRefusal::Pool { why: "no".into() },
        ];
        for kind in refusals.into_iter().map(Err).chain([Ok(token())]) {
            let answer = FrameAnswer { number: 12, kind };
            assert_eq!(FrameAnswer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn a_long_text_is_shortened_between_characters() {
        let answer = FrameAnswer { number: 1, kind: Err(MirrorRefusal::Pool { why: "aé".repeat(400) }) };
        let Ok(FrameAnswer { kind: Err(MirrorRefusal::Pool { why }), .. }) =
            FrameAnswer::decode(&answer.encode())
        else {
            panic!("it is an answer of the pool");
        };
        assert_eq!(why, "aé".repeat(309) + "a");
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_noticed(at in 0..FrameAnswer::SIZE, bit in 0..8u32) {
            let mut record = FrameAnswer { number: 1, kind: Ok(token()) }.encode();
            record[at] ^= 1u8 << bit;
            prop_assert!(FrameAnswer::decode(&record).is_err());
        }
    }
}
