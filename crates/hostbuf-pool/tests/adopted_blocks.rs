//! Blocks of a pool that are adopted as if they were shared memory of another library.

use std::sync::Arc;

use hostbuf_pool::adopt::{AdoptError, AdoptOptions, Adopter};
use hostbuf_pool::{Pool, PoolMode, PoolOptions, ProducerOptions};
use hostbuf_register::testing::fake::Fake;
use hostbuf_register::{Access, Overlap, Span};

/// The adopter's mapping would keep memory that the broker has granted again.
#[test]
fn a_block_is_not_adopted() {
    let pool = Pool::connect(PoolOptions::new("adopting").mode(PoolMode::Private)).expect("a private pool");
    let producer = pool.producer(&ProducerOptions::new(4096, 2)).expect("there is memory");
    let mut block = producer.take().expect("a free block");
    let span = Span::new(block.as_mut_slice().as_ptr() as usize, block.len()).expect("a range");
    let fake = Arc::new(Fake::new(Overlap::Refused));
    let adopter = Adopter::new(fake.clone(), AdoptOptions::new()).expect("an adopter");
    let refused = adopter.adopt(span, Access::READ).map(drop).expect_err("a block is adopted");
    assert!(matches!(refused, AdoptError::PoolBlock { .. }), "{refused}");
    assert!(refused.to_string().contains("use the method dma of the block"), "{refused}");
    assert_eq!(fake.made(), 0);
}
