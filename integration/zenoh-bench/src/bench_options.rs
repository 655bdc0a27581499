//! The arguments of the program.

use std::time::Duration;

/// The arguments of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BenchOptions {
    /// The part with frames from processor to processor.
    pub(crate) processor: bool,
    /// The part with readers that are killed.
    pub(crate) deaths: bool,
    /// The part with frames to a GPU.
    pub(crate) gpu: bool,
    /// The part with a camera in a container.
    pub(crate) contained: bool,
    /// True for few and short turns.
    pub(crate) quick: bool,
    /// The number of frames to the GPU by each way.
    pub(crate) frames: u32,
}

impl BenchOptions {
    /// Parses the arguments.
    pub(crate) fn parse(words: &[&str]) -> Result<BenchOptions, String> {
        let mut options = BenchOptions {
            processor: false,
            deaths: false,
            gpu: false,
            contained: false,
            quick: false,
            frames: 1800,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "processor" => options.processor = true,
                "deaths" => options.deaths = true,
                "gpu" => options.gpu = true,
                "contained" => options.contained = true,
                "--quick" => (options.quick, options.frames) = (true, 60),
                "--frames" => {
                    let count = words.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
                    options.frames = count.ok_or("--frames needs a number")?;
                }
                other => {
                    return Err(format!(
                        "unexpected argument '{other}': expected processor, deaths, contained, gpu, --quick \
                         or --frames N"
                    ));
                }
            }
        }
        if !(options.processor || options.deaths || options.contained || options.gpu) {
            (options.processor, options.deaths) = (true, true);
            options.contained = std::process::Command::new("bwrap").arg("--version").output().is_ok();
            if !options.contained {
                println!("without the part contained: there is no bubblewrap (bwrap)");
            }
            options.gpu = std::path::Path::new("/dev/nvidiactl").exists();
            if !options.gpu {
                println!("without the part gpu: there is no /dev/nvidiactl");
            }
        }
        Ok(options)
    }

    /// Returns the time of one turn.
    pub(crate) fn turn(&self) -> Duration {
        if self.quick { Duration::from_millis(300) } else { Duration::from_secs(2) }
    }

    /// Returns the number of turns.
    pub(crate) fn turns(&self) -> usize {
        if self.quick { 3 } else { 9 }
    }
}
