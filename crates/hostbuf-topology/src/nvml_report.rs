//! The answers of NVML that a topology contains, and their text in a recorded tree.

use std::fmt::Write as _;

use crate::pci_address::PciAddress;

/// The questions to NVML that take long: some milliseconds for each GPU, or for each pair.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "nvml"), allow(dead_code, reason = "without NVML no question is asked"))]
pub(crate) struct NvmlQuestions {
    /// The nodes next to each GPU.
    pub(crate) nodes: bool,
    /// The NVLinks between GPUs.
    pub(crate) links: bool,
}

impl NvmlQuestions {
    pub(crate) const ALL: NvmlQuestions = NvmlQuestions { nodes: true, links: true };
}

/// The file of a recorded tree with the answers of NVML.
pub(crate) const NVML_FILE: &str = "hostbuf/nvml";

/// The number of lines that are read of a recorded report.
const LINE_LIMIT: usize = 4096;

/// A GPU as NVML reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NvmlGpu {
    pub(crate) index: u32,
    pub(crate) address: PciAddress,
    pub(crate) uuid: Option<String>,
    pub(crate) model: Option<String>,
    /// The nodes next to the GPU.
    pub(crate) nodes: Vec<u32>,
    pub(crate) mig_uuids: Vec<String>,
}

/// The NVLinks between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvLinkCount {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) count: u32,
}

/// The answers of NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NvmlReport {
    pub(crate) gpus: Vec<NvmlGpu>,
    pub(crate) links: Vec<NvLinkCount>,
}

impl NvmlReport {
    /// Returns the report as lines of words that are separated by tabs.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for NvmlGpu { index, address, uuid, model, nodes, mig_uuids } in &self.gpus {
            let word = |word: &Option<String>| word.as_deref().unwrap_or("-").replace(['\t', '\n'], " ");
            let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            let (uuid, model, nodes) = (word(uuid), word(model), nodes.join(","));
            writeln!(text, "gpu\t{index}\t{address}\t{uuid}\t{model}\t{nodes}").expect("to memory");
            for mig in mig_uuids {
                writeln!(text, "mig\t{index}\t{mig}").expect("to memory");
            }
        }
        for NvLinkCount { from, to, count } in &self.links {
            writeln!(text, "nvlink\t{from}\t{to}\t{count}").expect("to memory");
        }
        text
    }

    /// Parses the text of a report. Lines that are none of a report are left out.
    pub(crate) fn from_text(text: &str) -> NvmlReport {
        let mut report = NvmlReport::default();
        for line in text.lines().take(LINE_LIMIT) {
            let mut words = line.split('\t');
            let (kind, mut word) = (words.next(), || words.next().unwrap_or_default());
            match kind {
                Some("gpu") => {
                    let (Ok(index), Ok(address)) = (word().parse(), word().parse()) else { continue };
                    let mut some = || Some(word().to_owned()).filter(|word| word != "-" && !word.is_empty());
                    let (uuid, model) = (some(), some());
                    let nodes = word().split(',').filter_map(|node| node.parse().ok()).collect();
                    report.gpus.push(NvmlGpu { index, address, uuid, model, nodes, mig_uuids: Vec::new() });
                }
                Some("mig") => {
                    let Ok(index) = word().parse::<u32>() else { continue };
                    let gpu = report.gpus.iter_mut().find(|gpu| gpu.index == index);
                    let uuid = word().to_owned();
                    gpu.into_iter().for_each(|gpu| gpu.mig_uuids.push(uuid.clone()));
                }
                Some("nvlink") => {
                    let (from, to, count) = (word().parse(), word().parse(), word().parse());
                    let (Ok(from), Ok(to), Ok(count)) = (from, to, count) else { continue };
                    report.links.push(NvLinkCount { from, to, count });
                }
                _ => {}
            }
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_its_text() {
        let gpu = |index: u32, uuid: Option<&str>| NvmlGpu {
            index,
            address: format!("0000:1{index}:00.0").parse().unwrap(),
            uuid: uuid.map(str::to_owned),
            model: Some("NVIDIA H100 80GB HBM3".into()),
            nodes: (0..index).collect(),
            mig_uuids: (0..index).map(|mig| format!("MIG-{mig}")).collect(),
        };
        let links = vec![NvLinkCount { from: 0, to: 1, count: 18 }];
        let report = NvmlReport { gpus: vec![gpu(0, Some("GPU-1")), gpu(1, None), gpu(2, None)], links };
        assert_eq!(NvmlReport::from_text(&report.to_text()), report);
        let garbage = "gpu\ngpu\t1\nmig\t7\tMIG-1\nnvlink\t0\t1\nnvlink\ta\tb\tc\n\n\t\t\nother\t1";
        assert_eq!(NvmlReport::from_text(garbage), NvmlReport::default());
    }
}
