//! `--bind`: the nodes on whose CPUs ranks run.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The option `--bind`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct BindArguments {
    /// Bind each rank to the CPUs of one NUMA node, and prefer the memory of this node. Ranks that
    /// are bound already stay as they are
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) bind: Option<BindMode>,
}

/// The choice of a rank's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BindMode {
    /// Distribute the ranks of a host over its nodes in blocks of consecutive ranks.
    Node,
    /// Use the node of a GPU that the rank sees; the ranks of a host take the GPUs round-robin.
    NearGpu,
}

impl BindMode {
    /// Returns the value of the option.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BindMode::Node => "node",
            BindMode::NearGpu => "near-gpu",
        }
    }
}

/// Returns the message about `--bind none` in a command line that the parser has refused. The
/// nearest value, `node`, has the opposite meaning.
pub(crate) fn explain_none(error: &clap::Error) -> Option<&'static str> {
    let is = |kind, text: &str| matches!(error.get(kind), Some(ContextValue::String(found)) if found.starts_with(text));
    let is_none = is(ContextKind::InvalidArg, "--bind ") && is(ContextKind::InvalidValue, "none");
    (error.kind() == ErrorKind::InvalidValue && is_none).then_some(
        "invalid value 'none' for '--bind <MODE>': hostbuf binds no rank without --bind, so leave it out; the engine's own \
         option follows --launcher-arg of `hostbuf run`",
    )
}

impl BindArguments {
    /// Returns the option as words of a command line.
    pub(crate) fn words(self) -> Option<String> {
        Some(format!("--bind={}", self.bind?.name()))
    }
}
