//! Tests with a fake driver, which needs no GPU.

mod call_lists;
mod contexts;
mod copy_batches;
mod deferred_copies;
mod deferred_work;
mod event_reuse;
mod events_and_streams;
mod failing_calls;
mod fake_driver;
mod forks;
mod host_memory;
mod logged_errors;
mod lost_contexts;
mod old_drivers;
mod pitched_copies;
mod shared_memory;
mod stream_order;
mod thread_streams;
