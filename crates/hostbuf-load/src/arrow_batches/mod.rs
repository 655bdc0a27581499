//! Record batches of loaded files of Arrow IPC.

mod batch_decoder;
#[cfg(test)]
mod tests;
