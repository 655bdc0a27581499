//! The GPUs that NVML reports. NVML is loaded at run time, and it starts no CUDA.

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::nvml_report::{NvLinkCount, NvmlGpu, NvmlQuestions, NvmlReport};
use crate::pci_address::PciAddress;

/// `NVML_AFFINITY_SCOPE_NODE` of nvml.h.
const SCOPE_NODE: u32 = 0;

/// The number of words of 64 bits for the kernel's limit of 1024 nodes.
const NODE_WORDS: usize = 16;

/// The number of links of a GPU that are asked for: more than any GPU has.
const LINK_LIMIT: u32 = 64;

/// Returns the report of this host's NVML.
///
/// # Errors
/// The reason why NVML does not answer, for a message to the user.
pub(crate) fn report(questions: NvmlQuestions) -> Result<NvmlReport, String> {
    let nvml = Nvml::init().map_err(reason)?;
    let devices: Vec<(u32, Device)> = (0..nvml.device_count().map_err(reason)?)
        .filter_map(|index| Some((index, nvml.device_by_index(index).ok()?)))
        .collect();
    let gpus: Vec<(NvmlGpu, &Device)> = devices
        .iter()
        .filter_map(|(index, device)| Some((gpu(*index, device, questions)?, device)))
        .collect();
    let links = if questions.links { links(&gpus) } else { Vec::new() };
    Ok(NvmlReport { gpus: gpus.into_iter().map(|(gpu, _)| gpu).collect(), links })
}

fn reason(error: NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "libnvidia-ml.so.1 cannot be loaded".into(),
        other => other.to_string(),
    }
}

fn gpu(index: u32, device: &Device, questions: NvmlQuestions) -> Option<NvmlGpu> {
    let affinity = |device: &Device| device.memory_affinity(NODE_WORDS, SCOPE_NODE).unwrap_or_default();
    Some(NvmlGpu {
        index,
        address: address(&device.pci_info().ok()?.bus_id)?,
        uuid: device.uuid().ok(),
        model: device.name().ok(),
        nodes: if questions.nodes { nodes(&affinity(device)) } else { Vec::new() },
        mig_uuids: mig_uuids(device),
    })
}

fn address(bus_id: &str) -> Option<PciAddress> {
    bus_id.parse().ok()
}

/// Returns the numbers of the bits that are set.
fn nodes(words: &[std::ffi::c_ulong]) -> Vec<u32> {
    let bit_set = |bit: &u32| words[*bit as usize / 64] >> (bit % 64) & 1 == 1;
    (0..64 * words.len() as u32).filter(bit_set).collect()
}

fn mig_uuids(gpu: &Device) -> Vec<String> {
    let count = gpu.mig_device_count().unwrap_or(0);
    (0..count).filter_map(|index| gpu.mig_device_by_index(index).ok()?.uuid().ok()).collect()
}

/// Returns the NVLinks between pairs of GPUs. Links of two GPUs to NVSwitches connect them if NVML
/// reports that they reach each other over NVLink; `nvidia-smi topo -m` counts them like that.
fn links(gpus: &[(NvmlGpu, &Device)]) -> Vec<NvLinkCount> {
    let remotes: Vec<Vec<Option<PciAddress>>> = gpus.iter().map(|(_, device)| remotes(device)).collect();
    let others = |links: &[Option<PciAddress>]| {
        let is_gpu = |remote: &PciAddress| gpus.iter().any(|(gpu, _)| gpu.address == *remote);
        links.iter().filter(|remote| !remote.as_ref().is_some_and(is_gpu)).count()
    };
    let mut found = Vec::new();
    for (a, (from, device)) in gpus.iter().enumerate() {
        for (b, (to, other)) in gpus.iter().enumerate().skip(a + 1) {
            let direct = remotes[a].iter().filter(|remote| **remote == Some(to.address)).count();
            let count = match direct {
                0 => {
                    let switched = others(&remotes[a]).min(others(&remotes[b]));
                    let reach = || device.p2p_status(other, P2pCapabilitiesIndex::NvLink);
                    if switched > 0 && matches!(reach(), Ok(P2pStatus::Ok)) { switched } else { 0 }
                }
                direct => direct,
            };
            if count > 0 {
                found.push(NvLinkCount { from: from.index, to: to.index, count: count as u32 });
            }
        }
    }
    found
}

/// Returns the other end of each active link, or `None` where NVML does not report it.
fn remotes(device: &Device) -> Vec<Option<PciAddress>> {
    let mut remotes = Vec::new();
    for number in 0..LINK_LIMIT {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => remotes.push(link.remote_pci_info().ok().and_then(|remote| address(&remote.bus_id))),
            Ok(false) => {}
            // The GPU has no link of this number, and none of a larger one.
            Err(NvmlError::InvalidArg) => break,
            // The GPU has no NVLink.
            Err(NvmlError::NotSupported) if number == 0 => break,
            Err(_) => {}
        }
    }
    remotes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_the_bits_of_the_words() {
        assert_eq!(nodes(&[0b101, 0, 1]), [0, 2, 128]);
        assert_eq!(nodes(&[]), []);
    }

    #[test]
    fn nvml_answers_or_gives_a_reason() {
        match report(NvmlQuestions::ALL) {
            Ok(report) => assert!(report.gpus.iter().all(|gpu| gpu.uuid.is_some())),
            Err(reason) => assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}"),
        }
    }
}
