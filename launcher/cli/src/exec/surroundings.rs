//! The part of the host around a rank: the CPUs on which it runs, and the devices near them.

use std::process::Command;

use hostbuf::JobError;
use hostbuf_topology::{CpuSet, CudaVariables, Topology};

use super::device_rank::device_rank;
use super::near_devices::NearDevices;
use super::rank;
use super::rank_binding::{RankBinding, RankCpus, bound_already};
use crate::bind_mode::BindMode;
use crate::engines::Place;

/// The devices near a rank, which runs on the CPUs on which this process runs.
pub(super) struct Surroundings(NearDevices);

impl Surroundings {
    /// Binds this process as `--bind` requests, and finds the devices near it. Each rank reads the
    /// topology by itself: a resource manager may show other GPUs to each rank, and none or all to
    /// the agent, which is outside of their control groups.
    ///
    /// # Errors
    /// As [`RankBinding::choose`] and [`RankBinding::apply`].
    pub(super) fn find(mode: Option<BindMode>, place: Place, quiet: bool) -> Result<Surroundings, JobError> {
        let variables = CudaVariables::from_env();
        let topology = Topology::discover_for_rank(&variables);
        let near = |cpus: &CpuSet, number, gpu| NearDevices::find(&topology, cpus, &variables, number, gpu);
        let Some(mode) = mode else {
            let cpus = CpuSet::of_this_thread();
            return Ok(Surroundings(near(&cpus, device_rank(&topology, &cpus, place), None)));
        };
        let cpus = RankCpus::of_this_thread(&topology);
        let Some(binding) = RankBinding::choose(mode, &topology, &cpus, place, &variables)? else {
            // One line is enough for a host.
            if place.local_rank == 0 && !quiet {
                hostbuf_agent::complain!("hostbuf: {}", bound_already(mode, &cpus, rank::engine()));
            }
            return Ok(Surroundings(near(&cpus.own, device_rank(&topology, &cpus.own, place), None)));
        };
        binding.apply()?;
        let RankBinding { cpus, device_rank, gpu, .. } = binding;
        Ok(Surroundings(near(&cpus, device_rank, gpu)))
    }

    /// Sets the variables of a program, and removes those that an enclosing job has set.
    pub(super) fn set(self, command: &mut Command) {
        for (name, value) in self.0.variables() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}
