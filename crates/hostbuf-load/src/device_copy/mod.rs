//! Copies of loaded tensors to a device.

#[cfg(test)]
mod bound_tests;
mod buffer_copy;
mod queued_copies;
mod region_rows;
#[cfg(test)]
mod row_tests;
mod started_copies;
#[cfg(test)]
mod tests;
mod window_copies;
