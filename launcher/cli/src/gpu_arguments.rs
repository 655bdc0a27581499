//! The arguments about GPU sections.

use hostbuf::{BufferOptions, Error, Result, Section};

/// The ranks that use GPUs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct GpuArguments {
    /// Map the GPU sections (gpu=) in the first rank of each host, or in all ranks [default:
    /// all]
    #[arg(long, value_name = "WHO", value_enum)]
    gpu_ranks: Option<GpuRanks>,
}

/// The ranks of a host that map the GPU sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GpuRanks {
    /// The rank with local rank 0.
    Leader,
    /// All ranks.
    All,
}

impl GpuArguments {
    /// Checks that the argument has an effect.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a GPU section.
    pub(crate) fn check(&self, buffers: &[BufferOptions]) -> Result<()> {
        match self.gpu_ranks {
            Some(_) if !have_gpu_sections(buffers) => Err(Error::Invalid {
                what: "--gpu-ranks without a GPU section: add --section name=a,size=2G,gpu=0".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the argument as words of a command line, if a buffer has GPU sections.
    pub(crate) fn words(&self, buffers: &[BufferOptions]) -> Vec<String> {
        let who = if self.gpu_ranks == Some(GpuRanks::Leader) { "leader" } else { "all" };
        have_gpu_sections(buffers).then(|| format!("--gpu-ranks={who}")).into_iter().collect()
    }

    /// Returns whether the rank with number `local_rank` on its host maps the GPU sections.
    pub(crate) fn includes(&self, local_rank: u64) -> bool {
        local_rank == 0 || self.gpu_ranks != Some(GpuRanks::Leader)
    }

    /// Returns whether the argument is given, which `hostbuf run` does if there are such sections.
    pub(crate) fn is_given(&self) -> bool {
        self.gpu_ranks.is_some()
    }
}

/// Returns whether a buffer has GPU sections.
pub(crate) fn have_gpu_sections(buffers: &[BufferOptions]) -> bool {
    buffers.iter().flat_map(|buffer| &buffer.sections).any(Section::is_on_gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_are_passed_on_if_there_are_sections_on_gpus() {
        let without = [BufferOptions::new(1)];
        let with = [BufferOptions::new(1).section(Section::new("a", 1).gpus([0]))];
        let (all, leader) = (GpuArguments::default(), GpuArguments { gpu_ranks: Some(GpuRanks::Leader) });
        assert_eq!((all.words(&without), all.words(&with)), (vec![], vec!["--gpu-ranks=all".to_owned()]));
        assert_eq!(leader.words(&with), ["--gpu-ranks=leader"]);
        assert!(all.check(&without).is_ok() && leader.check(&with).is_ok());
        assert!(leader.check(&without).unwrap_err().to_string().contains("without a GPU section"));
        assert!(all.includes(1) && leader.includes(0) && !leader.includes(1));
    }
}
