//! The command lines of the two jobs: the agents, one on each host, and the program's ranks.

use std::ffi::OsString;
use std::path::Path;

use hostbuf::{Error, Result};
use hostbuf_protocol::environment::{ENV_JOB, ENV_PREFIX};

use crate::engines::{self, AgentProgram, AppContext, Engine, LaunchCommand, LaunchPlan, LaunchRequest};
use crate::hosts::{self, Host};
use crate::padding;
use crate::preload_file;
use hostbuf_agent::spec::Spec;

/// The requested ranks and slots, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestedSize {
    pub(super) ranks: Option<usize>,
    pub(super) slots: Option<usize>,
}

impl RequestedSize {
    /// Returns the size of a job of `contexts` on `hosts`; no hosts means that the user names none.
    pub(super) fn new(contexts: &[AppContext], hosts: &[Host]) -> RequestedSize {
        let slots = (!hosts.is_empty()).then(|| hosts.iter().map(|host| host.slots).sum());
        RequestedSize { ranks: contexts.iter().map(|context| context.ranks).sum(), slots }
    }
}

/// The options for the engine.
pub(super) struct EngineOptions {
    /// The options with which the ranks start.
    for_ranks: Vec<OsString>,
    /// The user's options without those that place ranks.
    for_agents: Vec<OsString>,
    /// The number of the user's options.
    count: usize,
}

impl EngineOptions {
    /// Makes the options for an engine from those of the user. If `binds`, each rank binds itself,
    /// so the engine must not, unless the user's options say how.
    pub(super) fn new(engine: &dyn Engine, all: &[OsString], binds: bool) -> EngineOptions {
        let mut for_agents = Vec::new();
        let mut rest = all.iter();
        while let Some(word) = rest.next() {
            let text = word.to_string_lossy();
            let name = text.split('=').next().unwrap_or("");
            match engine.placing_options().iter().find(|(known, _)| *known == name) {
                Some(&(_, values)) if name.len() == text.len() => {
                    for _ in 0..values {
                        rest.next();
                    }
                }
                Some(_) => {}
                None => for_agents.push(word.clone()),
            }
        }
        let mut for_ranks = Vec::new();
        let words: Vec<_> = all.iter().map(|word| word.to_string_lossy()).collect();
        if binds && !engine.is_binding(&words) {
            for_ranks.extend(engine.no_binding().iter().map(OsString::from));
        }
        for_ranks.extend_from_slice(all);
        EngineOptions { for_ranks, for_agents, count: all.len() }
    }

    /// Returns whether an option places ranks.
    fn place_ranks(&self) -> bool {
        self.for_agents.len() < self.count
    }

    /// Returns the program of all ranks if every host with an agent runs it. With several programs,
    /// or with options that place ranks, a host may not need the program.
    pub(super) fn common_program(&self, contexts: &[AppContext]) -> Option<String> {
        let [context] = contexts else { return None };
        context.command.first().filter(|_| !self.place_ranks())?.to_str().map(str::to_owned)
    }
}

/// Makes the command lines of a job. `exec_options` are passed to `hostbuf exec`.
///
/// # Errors
/// [`Error::Os`] if this program does not know its own path, and the errors of [`Engine::plan`].
pub(super) fn plan(
    command: &LaunchCommand,
    agent: &AgentProgram,
    hosts: &[Host],
    contexts: &[AppContext],
    options: &EngineOptions,
    spec: &Spec,
    exec_options: &[String],
) -> Result<LaunchPlan> {
    let exec = std::env::current_exe()
        .map_err(|source| Error::Os { doing: "looking for this program's own path".into(), source })?;
    let size = RequestedSize::new(contexts, hosts);
    let ranks = size.ranks.or(size.slots);
    // If the engine fills hosts in order, the hosts that get no rank are known. Otherwise every
    // host gets an agent, and an agent without ranks ends as soon as all ranks have connected
    // elsewhere.
    let agent_hosts = match ranks {
        Some(n) if !options.place_ranks() => hosts::used(hosts, n),
        _ => hosts.to_vec(),
    };
    let agent_hosts: Vec<Host> = agent_hosts.into_iter().map(|host| Host { slots: 1, ..host }).collect();
    let names: Vec<&str> = spec.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
    let names = names.join(",");
    let head = ["exec", "--socket", &spec.socket].map(OsString::from);
    let names = ["--names", &names].map(OsString::from).into_iter().filter(|_| !spec.buffers.is_empty());
    let prefix: Vec<OsString> = [exec.clone().into_os_string()]
        .into_iter()
        .chain(head)
        .chain(names)
        .chain(exec_options.iter().map(OsString::from))
        .chain(["--".into()])
        .collect();
    let allocated_hosts = engines::ALL.iter().find_map(|engine| engine.allocated_hosts());
    let mut plan = command.engine.plan(&LaunchRequest {
        command: &command.path,
        agent,
        agent_arguments: &spec.arguments(),
        hosts,
        agent_hosts: &agent_hosts,
        contexts,
        ranks,
        options: &options.for_ranks,
        agent_options: &options.for_agents,
        inherited: inherited(&options.for_ranks, spec, &exec).as_deref(),
        allocated_hosts: allocated_hosts.as_deref(),
        prefix: &prefix,
    })?;
    for (name, value) in engines::ALL.iter().flat_map(|engine| engine.allocation_variables()) {
        for line in plan.ranks.iter_mut().chain([&mut plan.agents]) {
            line.variables.push(((*name).into(), (*value).into()));
        }
    }
    Ok(plan)
}

/// Returns the variables that processes of MPI_Comm_spawn inherit through the engine, since
/// `hostbuf exec` is not in front of them. It sets the values of the ranks itself. The result is
/// `None` if the user's options set LD_PRELOAD.
fn inherited(options: &[OsString], spec: &Spec, exec: &Path) -> Option<Vec<(String, String)>> {
    if options.iter().any(|option| option.to_string_lossy().contains("LD_PRELOAD")) {
        return None;
    }
    let mut variables =
        vec![(ENV_JOB.to_owned(), spec.socket.clone()), (ENV_PREFIX.to_owned(), exec.display().to_string())];
    if spec.buffers.is_empty() {
        return Some(variables);
    }
    let paddings = padding::variables(spec.buffers.iter().map(|buffer| buffer.name.as_str()));
    variables.extend(paddings.into_iter().map(|(name, padding)| (name, padding.to_owned())));
    if let Some(object) = preload_file::installed() {
        let theirs = std::env::var("LD_PRELOAD")
            .ok()
            .filter(|l| !l.is_empty())
            .map_or(String::new(), |l| format!(":{l}"));
        variables.push(("LD_PRELOAD".to_owned(), format!("{}{theirs}", object.display())));
    }
    Some(variables)
}

#[cfg(test)]
mod tests {
    use super::super::contexts;
    use super::*;
    use crate::engines::{Invocation, Release};
    use hostbuf::BufferOptions;

    fn plan_of(
        engine: &str,
        hosts: &str,
        ranks: Option<usize>,
        command: &[&str],
        arguments: &[&str],
    ) -> LaunchPlan {
        plan_with(engine, hosts, ranks, command, arguments, false)
    }

    fn plan_with(
        engine: &str,
        hosts: &str,
        ranks: Option<usize>,
        command: &[&str],
        arguments: &[&str],
        binds: bool,
    ) -> LaunchPlan {
        let mut spec = Spec::new(1, "s".into(), vec![BufferOptions::new(4096)]);
        spec.reports = true;
        let hosts = if hosts.is_empty() { Vec::new() } else { hosts::parse(hosts).unwrap() };
        let contexts = contexts::split(ranks, command.iter().map(OsString::from).collect()).unwrap();
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let registering = ["--register=mlock".to_owned()];
        let engine = engines::ALL.iter().copied().find(|e| e.option() == engine).unwrap();
        let release = Release::new(engine.name(), "4".into(), Some(engine.option()));
        let command = LaunchCommand { engine, path: "mpirun".into(), release };
        let agent = AgentProgram { path: "/agent".into(), managed_start: None, libraries: None };
        let options = EngineOptions::new(engine, &arguments, binds);
        plan(&command, &agent, &hosts, &contexts, &options, &spec, &registering).unwrap()
    }

    fn text(line: &Invocation) -> String {
        line.words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn open_mpi_starts_agents_only_on_hosts_with_ranks() {
        let plan =
            plan_of("openmpi", "h0:2,h1:2,h2:2", Some(3), &["./a", ":x"], &["--mca", "btl", "tcp,self"]);
        assert!(
            text(&plan.agents)
                .starts_with("mpirun --mca btl tcp,self --host h0:1,h1:1 -np 2 --bind-to none /agent")
        );
        assert!(text(&plan.ranks[0]).contains("--host h0:2,h1:2,h2:2 -np 3"));
        assert!(text(&plan.ranks[0]).ends_with("exec --socket s --names default --register=mlock -- ./a :x"));
    }

    #[test]
    fn placement_options_apply_to_the_programs_and_widen_the_agents() {
        let plan = plan_of(
            "openmpi",
            "h0:2,h1:2",
            Some(2),
            &["./a"],
            &["--map-by", "node", "--bind-to=core", "-x", "A"],
        );
        assert!(
            text(&plan.agents).starts_with("mpirun -x A --host h0:1,h1:1 -np 2"),
            "{}",
            text(&plan.agents)
        );
        assert!(text(&plan.ranks[0]).contains("--map-by node --bind-to=core -x A"));
    }

    #[test]
    fn ranks_that_bind_themselves_are_not_bound_by_the_engine() {
        for (engine, words, own) in [
            (
                "openmpi",
                "mpirun --bind-to none",
                &[
                    &["--bind-to", "core"][..],
                    &["-bind-to=core"],
                    &["--map-by", "socket:PE=2"],
                    &["--map-by", "PE=2"],
                    &["--map-by", "pe-list=0,1:ordered"],
                    &["--rankfile", "ranks"],
                    &["--cpus-per-rank", "2"],
                    &["-cpus-per-proc", "2"],
                    &["--cpu-set", "0-3"],
                    &["-cpu-list", "0,1"],
                    &["--mca", "hwloc_base_binding_policy", "core"],
                    &["--mca", "rmaps_base_cpus_per_rank", "2"],
                    &["--prtemca", "hwloc_default_cpu_list", "0,1"],
                    &["--prtemca", "rmaps_default_mapping_policy", "slot:PE=2"],
                ][..],
            ),
            (
                "slurm",
                "mpirun --overlap --cpu-bind=none",
                &[
                    &["--cpu-bind=cores"],
                    &["--cpu_bind=rank"],
                    &["--cpu-bind", "cores"],
                    &["--hint=nomultithread"],
                ],
            ),
        ] {
            let ranks = |arguments: &[&str], binds| {
                let plan = plan_with(engine, "h0:2,h1:2", Some(2), &["./a"], arguments, binds);
                (text(&plan.ranks[0]), text(&plan.agents))
            };
            let (bound, free) = (ranks(&[], false), ranks(&[], true));
            assert!(free.0.starts_with(words) && !bound.0.starts_with(words), "{free:?}");
            // The agents are the same, and so are the hosts that have one.
            assert_eq!(free.1, bound.1);
            for arguments in own {
                assert_eq!(ranks(arguments, true), ranks(arguments, false), "{engine}");
            }
        }
        // Placing is not binding, and neither is a variable.
        for other in
            [&["--map-by", "socket"][..], &["-x", "PE=2"], &["-x", "MY_cpu_set=1"], &["--report-bindings"]]
        {
            let plan = plan_with("openmpi", "h0:2,h1:2", Some(2), &["./a"], other, true);
            assert!(text(&plan.ranks[0]).starts_with("mpirun --bind-to none"), "{other:?}");
        }
        for engine in ["local", "mpich"] {
            let ranks = |binds| text(&plan_with(engine, "h0:2", Some(2), &["./a"], &[], binds).ranks[0]);
            assert_eq!(ranks(true), ranks(false));
        }
    }

    #[test]
    fn several_programs_start_in_one_command() {
        let plan = plan_of("mpich", "h0:2,h1:2", Some(1), &["./a", ":", "-n", "3", "--", "./b", "y"], &[]);
        let ranks = text(&plan.ranks[0]);
        assert!(
            ranks.contains("-n 1") && ranks.contains("-- ./a : -n 3") && ranks.ends_with("-- ./b y"),
            "{ranks}"
        );
        for bad in [&["./a", ":", "./b"][..], &["./a", ":"], &["./a", ":", "-n", "x", "./b"]] {
            assert!(contexts::split(Some(1), bad.iter().map(OsString::from).collect()).is_err());
        }
    }

    #[test]
    fn local_ranks_get_their_rank_and_size() {
        let plan = plan_of("local", "", Some(2), &["./a", ":", "-n", "1", "./b"], &[]);
        assert_eq!(plan.ranks.len(), 3);
        assert!(text(&plan.ranks[2]).ends_with(" exec --socket s --names default --register=mlock -- ./b"));
        assert!(plan.ranks[2].variables.contains(&("HOSTBUF_LAUNCHED_RANK".into(), "2".into())));
        assert!(plan.ranks[0].variables.contains(&("HOSTBUF_LAUNCHED_RANKS".into(), "3".into())));
    }
}
