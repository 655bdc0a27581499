//! The memory of the GPU sections: one rank of the host creates it, and the agent holds its
//! descriptors for all others. The agent itself uses no GPU.

use std::os::fd::OwnedFd;

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::{OpenDescriptors, encode};
use hostbuf_protocol::failure::ErrorRecord;
use hostbuf_protocol::message::Message;

use super::super::orders::Event;
use super::attached::Attached;
use super::state::{Server, Stage};

impl Server {
    /// Tells the ranks the address of the GPU sections. The lowest rank that uses GPUs creates the
    /// memory.
    pub(super) fn map_gpu_sections(&mut self, address: u64, pieces: usize) {
        self.stage = Stage::MappingGpu;
        self.deadline.progress();
        (self.gpu.address, self.gpu.pieces) = (Some(address), pieces);
        let ranks: Vec<u64> = self.ranks().map(|(&id, _)| id).collect();
        let users = self.ranks().filter(|(id, _)| self.peers[id].uses_gpus);
        let creator = users.min_by_key(|(_, hello)| hello.local_rank).map(|(&id, _)| id);
        self.gpu.creator = creator;
        for id in ranks {
            self.send(id, &Message::GpuRange { address, creates: creator == Some(id) });
        }
        self.check_gpu_mapped();
    }

    /// Takes the memory that a rank has created, and sends it to the other ranks that use GPUs.
    pub(super) fn gpu_memory_created(&mut self, id: u64, descriptors: Vec<OwnedFd>) {
        let is_creator = self.gpu.creator == Some(id) && self.gpu.descriptors.is_empty();
        if !matches!(self.stage, Stage::MappingGpu) || !is_creator {
            return self.connection_ended(id);
        }
        if descriptors.len() != self.gpu.pieces {
            let (sent, expected) = (descriptors.len(), self.gpu.pieces);
            let why = format!("it sent {sent} descriptors of GPU memory instead of {expected}");
            return self.lost_with(id, JobError::new(ErrorClass::Attach, why));
        }
        self.gpu.descriptors = descriptors;
        self.gpu_sections_mapped(id);
        let others = self.ranks().filter(|(other, _)| **other != id && self.peers[other].uses_gpus);
        let others: Vec<u64> = others.map(|(&other, _)| other).collect();
        for other in others {
            self.send_gpu_memory(other);
        }
    }

    /// Fails the job since this agent has no room for the descriptors of a packet.
    pub(super) fn lacks_descriptors(&mut self, id: u64) {
        let why = format!(
            "the agent cannot receive the {} descriptors of the GPU sections: {}; raise the hard limit (`ulimit -Hn`)",
            self.gpu.pieces,
            OpenDescriptors::count().needs(self.gpu.pieces as u64)
        );
        self.lost_with(id, JobError::new(ErrorClass::Os, why));
    }

    /// Records that a rank has mapped the GPU sections.
    pub(super) fn gpu_sections_mapped(&mut self, id: u64) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.has_mapped_gpu = true;
        }
        self.deadline.progress();
        self.check_gpu_mapped();
    }

    /// Reports to the coordinator that all ranks that use GPUs have mapped the sections.
    fn check_gpu_mapped(&mut self) {
        let mut ranks = self.peers.values().filter(|peer| peer.counted);
        let all_have_mapped = ranks.all(|rank| !rank.uses_gpus || rank.has_mapped_gpu);
        if matches!(self.stage, Stage::MappingGpu) && all_have_mapped {
            self.stage = Stage::Waiting;
            let _ = self.events.send(Event::GpuMapped);
        }
    }

    /// Sends the GPU sections to a process, or the reason why there are none.
    pub(super) fn send_gpu_memory(&mut self, id: u64) {
        match self.gpu.address {
            Some(address) if !self.gpu.descriptors.is_empty() => {
                self.send_packet(id, encode(&Message::GpuMemory { address }), Attached::GpuMemory);
            }
            _ => {
                let why = "the agent of this host has no GPU sections: the job has requested none, or no rank of this host has \
                           created them. Request one (--section name=a,size=2G,gpu=0) in a job whose ranks use GPUs";
                self.send(id, &Message::Refused { error: ErrorRecord::new(ErrorClass::Attach, why) });
            }
        }
    }
}
