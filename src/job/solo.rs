//! A group of one rank, for a program that runs alone.

use super::{Collective, Reduce};
use crate::error::Result;

/// The group of this process alone. Its collective operations are copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        all.copy_from_slice(mine);
        Ok(())
    }

    fn broadcast(&self, _: &mut [u8], _: usize) -> Result<()> {
        Ok(())
    }

    fn split(&self, _: usize) -> Result<Box<dyn Collective>> {
        Ok(Box::new(Solo))
    }

    fn all_reduce(&self, _: &mut [u64], _: Reduce) -> Result<()> {
        Ok(())
    }
}
