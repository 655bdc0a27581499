//! Copies of loaded tensors to a device.

mod buffer_copy;
mod started_copies;
#[cfg(test)]
mod tests;
mod window_copies;
