//! The side of the agent that serves the processes of its host: one thread, no blocking call but
//! `poll`.

mod attached;
mod coverage;
mod deadline;
mod distribution;
mod failure;
mod gather_parts;
mod gathers;
mod gpu_descriptors;
mod gpu_memory;
mod lateness;
mod local_job;
mod member_ranks;
mod members;
mod messages;
mod new_clients;
mod outbox;
mod serve;
mod state;
mod votes;

pub(super) use state::Server;
