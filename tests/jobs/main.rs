//! Real jobs: `hostbuf run` and `hostbuf exec` with real programs, on this host and on simulated
//! ones. Brokers of pools: `hostbuf broker` with real clients.
//!
//! If a machine lacks a prerequisite of a test, the test records it by `hostbuf_tests::skip`, and
//! `scripts/test` prints all skips and their reasons at the end.

mod address;
mod agent_deaths;
mod arguments;
mod before_main;
mod bench_command;
mod broker;
mod broker_descriptor_store;
mod broker_restart;
mod bytes_on_gpu;
mod changed_user;
mod cluster;
mod containers;
mod debugging;
mod departed_clients;
mod descendants;
mod doctor;
mod documentation;
mod engines;
mod errors;
mod examples;
mod exchanging_job;
mod fake_gpu;
mod faults;
mod filling;
mod first_failure;
mod forks;
mod image;
mod kraken2;
mod load_bounds;
mod load_command;
mod load_exchange_faults;
mod loaded_files;
mod loaded_files_faults;
mod loaded_tensors;
mod loaded_tensors_faults;
mod loading;
mod many_buffers;
mod members;
mod mirror;
mod near_devices;
mod near_gpus;
mod other_user;
mod pictures;
mod placement;
mod pool_stat;
mod process_limit;
mod registered;
mod result_output;
mod ring_stat;
mod running_broker;
mod running_job;
mod shared_buffer;
mod simulated_hosts;
mod slurm;
mod space;
mod stack_limit;
mod start_timeout;
mod stopped_child;
mod topology;
mod untrusted_clients;
mod without_buffer;
mod without_launcher;
