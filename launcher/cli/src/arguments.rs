//! The arguments that several subcommands share.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command, ValueHint};
use hostbuf::segment::{DEFAULT_NAME, SectionArgument, add_sections, check_all};
use hostbuf::{BufferOptions, Bytes, Error, Pages, Placement, Result};

use hostbuf::register::{DeviceList, DeviceName};

/// The placement of the buffer of `--size`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PlacementArguments {
    /// Place the pages on NUMA nodes: 0 (on node 0), 0,1 (on node 0 until it is full, then on node
    /// 1), interleave[:NODES[/WEIGHTS]] (page by page over all nodes with memory, or over NODES;
    /// interleave:0,1/3,1 places three pages on node 0, then one on node 1, and so on), or copies
    /// (a copy on the node of each rank, made when the program freezes the buffer)
    #[arg(long, value_name = "NODES", hide_possible_values = true, value_parser = PlacementParser)]
    pub(crate) numa: Option<Placement>,
    /// Add a section, a part of the buffer with NUMA nodes of its own: name=grid,size=4G,numa=0;
    /// may be repeated. Without --size the buffer consists of its sections. With buffer=index the
    /// section belongs to the buffer "index" of --buffer. With gpu=0 or gpu=0,1 it is memory of
    /// these GPUs of the host, in the order of their PCI addresses, at an address of its own
    #[arg(long, value_name = "SPEC", value_hint = ValueHint::Other, value_parser = |text: &str| text.parse::<SectionArgument>())]
    pub(crate) section: Vec<SectionArgument>,
}

/// The parser of `--numa`. Completions offer those of its values that suit every host.
#[derive(Clone, Debug)]
struct PlacementParser;

impl TypedValueParser for PlacementParser {
    type Value = Placement;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> std::result::Result<Placement, clap::Error> {
        Placement::from_text.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["interleave", "copies", "0"].into_iter().map(PossibleValue::new)))
    }
}

/// The requested buffers of a job.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct BufferArguments {
    /// Allocate a buffer of this size on each host: 4096, 64K, 512M, 2G, 1.5T
    #[arg(long, value_hint = ValueHint::Other, allow_negative_numbers = true)]
    size: Option<Bytes>,
    /// Use pages of this size: auto (the largest available), 4k, thp, 2m, 1g
    #[arg(long, value_parser = PossibleValuesParser::new(["auto", "4k", "thp", "2m", "1g"]).try_map(|text| text.parse::<Pages>()))]
    #[arg(ignore_case = true, hide_possible_values = true)]
    pages: Option<Pages>,
    /// Allocate pages at the first touch instead of before the ranks run
    #[arg(long)]
    lazy: bool,
    /// Include the contents in core files
    #[arg(long)]
    dump: bool,
    #[command(flatten)]
    placement: PlacementArguments,
    /// Add a buffer: name=index,size=2G,pages=2m,numa=0,lazy,dump; may be repeated;
    /// mmap-flags=0x2000 adds flags of mmap(2)
    #[arg(long, value_name = "SPEC", value_hint = ValueHint::Other, value_parser = |text: &str| text.parse::<BufferOptions>())]
    buffer: Vec<BufferOptions>,
    /// Fail when a program gets no buffer: one that is statically linked without the library, has
    /// file capabilities, or runs in a network namespace of its own
    #[arg(long)]
    pub(crate) require: bool,
}

impl BufferArguments {
    /// Returns whether no buffer is requested, nor anything about one.
    pub(crate) fn are_none(&self) -> bool {
        let BufferArguments { size, pages, lazy, dump, placement, buffer, require } = self;
        let PlacementArguments { numa, section } = placement;
        let flags = *lazy || *dump || *require;
        !flags
            && size.is_none()
            && pages.is_none()
            && numa.is_none()
            && section.is_empty()
            && buffer.is_empty()
    }

    /// Returns whether no buffer is requested, though something about all buffers may be.
    pub(crate) fn have_no_buffer(&self) -> bool {
        self.size.is_none() && self.placement.section.is_empty() && self.buffer.is_empty() && !self.lazy
    }

    /// Returns the options of a buffer of no size that has the requested pages and nodes.
    pub(crate) fn settings(&self) -> BufferOptions {
        let mut options = BufferOptions::new(0).pages(self.pages.unwrap_or_default());
        (options.dump, options.numa) = (self.dump, self.placement.numa.clone());
        options
    }

    /// Returns the requested buffers.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no buffer is requested, or if one has invalid options.
    pub(crate) fn options(&self) -> Result<Vec<BufferOptions>> {
        let mut list = Vec::new();
        let default = |named: &str| named == DEFAULT_NAME;
        let in_sections = self.placement.section.iter().any(|section| default(&section.buffer))
            && !self.buffer.iter().any(|buffer| default(&buffer.name));
        let settings = self.pages.is_some() || self.lazy || self.dump || self.placement.numa.is_some();
        if self.size.is_some() || in_sections {
            let size = self.size.map_or(0, |size| size.0);
            if self.size.is_some() && size == 0 {
                return Err(Error::Invalid { what: "size 0: a buffer has at least one byte".into() });
            }
            let mut options = BufferOptions::new(size).pages(self.pages.unwrap_or_default());
            (options.lazy, options.dump, options.numa) = (self.lazy, self.dump, self.placement.numa.clone());
            list.push(options);
        } else if self.buffer.is_empty() {
            return Err(Error::Invalid {
                what: match self.placement.section.first() {
                    Some(section) => format!(
                        "section \"{}\" is for the buffer \"{}\", which is not requested: leave out buffer=, or add --buffer name={1},size=2G",
                        section.section.name, section.buffer
                    ),
                    None => "no buffer is requested: add --size 2G, --section name=a,size=2G or --buffer name=x,size=2G".into(),
                },
            });
        } else if settings {
            return Err(Error::Invalid {
                what: "--pages, --numa, --lazy and --dump require --size; write --buffer name=x,size=2G,pages=2m,numa=0,lazy,dump instead".into(),
            });
        }
        list.extend(self.buffer.iter().cloned());
        add_sections(&mut list, self.placement.section.iter().cloned())?;
        check_all(&list)?;
        Ok(list)
    }
}

/// The time limit on the start of a job.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StartArguments {
    /// Fail if the start makes no progress for SECONDS: no rank connects, votes or maps the
    /// buffers. The default is HOSTBUF_START_TIMEOUT, else 300; 0 waits for ever
    #[arg(long, value_name = "SECONDS", value_hint = ValueHint::Other)]
    #[arg(value_parser = seconds, allow_negative_numbers = true)]
    start_timeout: Option<u32>,
}

/// Parses a time limit.
///
/// # Errors
/// The end of the message to the user if `text` is not a number of seconds.
fn seconds(text: &str) -> std::result::Result<u32, &'static str> {
    text.parse().map_err(|_| "expected a number of seconds (0 waits for ever)")
}

/// Parses the number of a GPU.
///
/// # Errors
/// The end of the message to the user if `text` is not a number.
pub(crate) fn gpu_number(text: &str) -> std::result::Result<u32, &'static str> {
    text.parse().map_err(|_| "expected the number of a GPU, such as 0")
}

impl StartArguments {
    /// Returns the time for which agents wait for their ranks; `None` means for ever.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the environment variable is not a number of seconds.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>> {
        const VARIABLE: &str = "HOSTBUF_START_TIMEOUT";
        let seconds = match (self.start_timeout, std::env::var(VARIABLE)) {
            (Some(seconds), _) => seconds,
            (None, Ok(text)) if !text.is_empty() => seconds(&text).map_err(|expected| Error::Invalid {
                what: format!("invalid {VARIABLE} \"{text}\": {expected}"),
            })?,
            (None, _) => 300,
        };
        Ok((seconds > 0).then(|| Duration::from_secs(seconds.into())))
    }
}

/// The registrations that are made before `main`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct RegisterArguments {
    #[arg(long, help = register_help(), value_name = "DEVICES", value_hint = ValueHint::Other, value_parser = |text: &str| text.parse::<DeviceList>())]
    pub(crate) register: Option<DeviceList>,
    /// Register in the first rank of each host, or in all ranks
    #[arg(long, value_name = "WHO", value_enum, default_value_t, requires = "register")]
    pub(crate) register_ranks: RegisterRanks,
}

/// Returns the help text of `--register`, with the devices of the list.
fn register_help() -> String {
    let devices: Vec<String> = DeviceName::all()
        .map(|device| format!("{} ({})", device.forms().join(" or "), device.summary()))
        .collect();
    format!(
        "Register every buffer before main, with devices separated by commas: {}. A device followed by :optional may \
         be missing",
        devices.join(", ")
    )
}

/// The ranks of a host that register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RegisterRanks {
    /// The rank with local rank 0.
    #[default]
    Leader,
    /// All ranks.
    All,
}

impl RegisterArguments {
    /// Checks that the buffers can be registered.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a buffer is lazy, or if there is none.
    pub(crate) fn check(&self, buffers: &[BufferOptions]) -> Result<()> {
        let lazy = buffers.iter().find(|b| b.lazy);
        match (&self.register, lazy) {
            (Some(devices), None) if buffers.is_empty() => Err(Error::Invalid {
                what: format!("--register {devices}: no buffer is requested: add --size 2G"),
            }),
            (Some(devices), Some(buffer)) => Err(Error::Invalid {
                what: format!(
                    "--register {devices}: buffer \"{}\" is lazy, and registering allocates all its pages: leave out --lazy or --register",
                    buffer.name
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the arguments as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let Some(devices) = &self.register else { return Vec::new() };
        let mut words = vec![format!("--register={devices}")];
        words.extend((self.register_ranks == RegisterRanks::All).then(|| "--register-ranks=all".to_owned()));
        words
    }

    /// Returns the devices with which the rank with number `local_rank` on its host registers.
    pub(crate) fn of(&self, local_rank: u64) -> Option<&DeviceList> {
        self.register.as_ref().filter(|_| local_rank == 0 || self.register_ranks == RegisterRanks::All)
    }
}
