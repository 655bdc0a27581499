//! The encoded table of tensors that is sent to all hosts.

use hostbuf::job::{Collective, Reduce};

use crate::error::LoadError;

/// Sends the encoded table of the first of the leaders to all of them. Collective among them.
///
/// # Errors
/// [`LoadError::Job`].
pub(super) fn send_table(leaders: &dyn Collective, mut table: Vec<u8>) -> Result<Vec<u8>, LoadError> {
    let mut length = [table.len() as u64];
    leaders.all_reduce(&mut length, Reduce::Max)?;
    table.resize(usize::try_from(length[0]).unwrap_or(usize::MAX), 0);
    leaders.broadcast(&mut table, 0)?;
    Ok(table)
}
