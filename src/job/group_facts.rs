//! Facts that the ranks of a group share.

use hostbuf_os::cores::Cores;
use hostbuf_os::process;

use super::{Collective, Reduce, all_or_none};
use crate::error::{Error, Result};

/// Returns a random number, the same on all ranks of `group`. Collective.
///
/// # Errors
/// [`Error::Os`] if the kernel has none; [`Error::Collective`].
pub(crate) fn random_number(group: &dyn Collective) -> Result<u128> {
    let drawn = if group.rank() == 0 { process::random() } else { Ok(0) };
    let drawn = all_or_none(group, drawn.map_err(Error::os("asking the kernel for a random number")))?;
    let mut random = [drawn as u64, (drawn >> 64) as u64];
    group.all_reduce(&mut random, Reduce::Max)?;
    Ok(u128::from(random[0]) | u128::from(random[1]) << 64)
}

/// Returns the cores on which the ranks of a group on one host may run. While one rank works for
/// all of them and the others sleep, it may use their cores. Collective.
///
/// # Errors
/// [`Error::Collective`].
pub(crate) fn cores_of(local: &dyn Collective) -> Result<Cores> {
    let mine = Cores::own();
    let mut all = vec![0; local.size() * Cores::BYTES];
    local.all_gather(&mine.to_bytes(), &mut all)?;
    Ok(all.chunks_exact(Cores::BYTES).fold(mine, |sum, one| sum.union(&Cores::from_bytes(one))))
}
