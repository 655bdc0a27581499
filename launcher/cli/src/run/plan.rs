//! The command lines of the two jobs: the agents, one on each host, and the program's ranks.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use hostbuf::internal::wire::{ENV_ADDRESS_ROOM, ENV_JOB, ENV_PREFIX, ENV_SIZE_ROOM, ROOM};
use hostbuf::{Error, Result};

use super::engine::Engine;
use super::hosts::{self, Host};
use crate::agent::spec::Spec;
use crate::preload_file;

/// One program of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) ranks: Option<usize>,
    pub(super) command: Vec<OsString>,
}

impl Context {
    /// `./a x : -n 2 -- ./b y`: programs with `:` between, each after the first with its own `-n`.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(super) fn split(ranks: Option<usize>, command: Vec<OsString>) -> Result<Vec<Context>> {
        let mut list = Vec::new();
        for (i, part) in command.split(|word| word == ":").enumerate() {
            let wrong =
                |what: &str| Error::Invalid { what: format!("program {} of this job: {what}", i + 1) };
            let mut context = Context { ranks: if i == 0 { ranks } else { None }, command: part.to_vec() };
            if i > 0 {
                if let Some(n) =
                    part.first().filter(|w| *w == "-n" || *w == "-np" || *w == "--ranks").and(part.get(1))
                {
                    let text = n.to_string_lossy();
                    let n = hosts::ranks(&text).map_err(|why| wrong(&format!("-n {text}: {why}")))?;
                    if n == 0 {
                        return Err(wrong("-n 0: a program has at least one rank"));
                    }
                    context.ranks = Some(n);
                    context.command.drain(..2);
                }
                if context.command.first().is_some_and(|w| w == "--") {
                    context.command.remove(0);
                }
            }
            match context.command.first() {
                None => return Err(wrong("there is none between the colons")),
                Some(word) if word.as_encoded_bytes().starts_with(b"-") => {
                    let word = word.to_string_lossy();
                    return Err(wrong(&format!(
                        "\"{word}\" is no option that may stand here, and no program"
                    )));
                }
                Some(_) => {}
            }
            list.push(context);
        }
        if list.len() > 1 && list.iter().any(|c| c.ranks.is_none()) {
            return Err(Error::Invalid { what: "with several programs each wants its own -n".into() });
        }
        Ok(list)
    }
}

/// A command line, and what its environment gets beside ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) words: Vec<OsString>,
    pub(super) variables: Vec<(String, String)>,
    /// A file that the command reads, handed over as a descriptor: its text, and the word that becomes its path.
    pub(super) script: Option<(String, usize)>,
}

impl Line {
    fn new(program: &Path) -> Line {
        Line { words: vec![program.into()], variables: Vec::new(), script: None }
    }

    fn words<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Line {
        self.words.extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }
}

/// Both jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) agents: Line,
    /// How many agents there will be, where it is known.
    pub(super) agent_count: Option<usize>,
    /// One line for an engine; one for each rank with the engine `local`.
    pub(super) ranks: Vec<Line>,
    /// The requested number of ranks, and the number of slots of the hosts that the user names.
    pub(super) asked: Asked,
}

/// The requested ranks and slots, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) ranks: Option<usize>,
    pub(super) slots: Option<usize>,
}

/// So many processes of one job a host is trusted with: each has a command line here, and a connection to the agent.
const MOST_LOCAL: usize = 1 << 16;

/// Options of the engines that say how many ranks go where: they are the program's, not the agents'. With each, how
/// many words follow it.
const PLACING: &[(&str, usize)] = &[
    ("-N", 1),
    ("--npernode", 1),
    ("-npernode", 1),
    ("--map-by", 1),
    ("-map-by", 1),
    ("--rank-by", 1),
    ("-rank-by", 1),
    ("--bind-to", 1),
    ("-bind-to", 1),
    ("--ppr", 1),
    ("--pernode", 0),
    ("-pernode", 0),
    ("--bynode", 0),
    ("--byslot", 0),
    ("-ppn", 1),
    ("--ppn", 1),
    ("-perhost", 1),
    ("-bynode", 0),
    ("--ntasks-per-node", 1),
    ("--distribution", 1),
    ("-m", 1),
    ("--cpu-bind", 1),
    ("--ntasks", 1),
    ("--nodes", 1),
    ("-n", 1),
    ("-np", 1),
    ("--np", 1),
    ("--cpus-per-task", 1),
    ("-c", 1),
    ("--mpi", 1),
    ("--report-bindings", 0),
    ("--rankfile", 1),
    ("-rf", 1),
    ("--cpus-per-proc", 1),
    ("--label", 0),
    ("-l", 0),
    ("--tag-output", 0),
    ("-tag-output", 0),
    ("--multi-prog", 0),
    ("--input", 1),
    ("--output", 1),
    ("--error", 1),
    ("--signal", 1),
];

/// The engine's options for the agents, and whether any was left out.
fn transport(arguments: &[OsString]) -> (Vec<OsString>, bool) {
    let mut list = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        let name = text.split('=').next().unwrap_or("");
        match PLACING.iter().find(|(known, _)| *known == name) {
            Some(&(_, values)) if name.len() == text.len() => {
                for _ in 0..values {
                    rest.next();
                }
            }
            Some(_) => {}
            None => list.push(word.clone()),
        }
    }
    let placed = list.len() < arguments.len();
    (list, placed)
}

/// Returns the program of all ranks if every host with an agent runs it. With several programs, or with options that
/// place ranks, a host may not need the program.
pub(super) fn common_program(contexts: &[Context], arguments: &[OsString]) -> Option<String> {
    let [context] = contexts else { return None };
    let (_, placed) = transport(arguments);
    context.command.first().filter(|_| !placed)?.to_str().map(str::to_owned)
}

impl Plan {
    /// Makes the command lines. `arguments` are passed to the engine, `for_exec` to `hostbuf exec`.
    ///
    /// # Errors
    /// [`Error::Os`] when this program does not know its own path; [`Error::Invalid`] for more ranks than one host takes.
    pub(super) fn new(
        engine: &Engine,
        agent: &Path,
        hosts: &[Host],
        contexts: &[Context],
        arguments: &[OsString],
        spec: &Spec,
        for_exec: &[String],
    ) -> Result<Plan> {
        let exec = std::env::current_exe()
            .map_err(|source| Error::Os { doing: "looking for this program's own path".into(), source })?;
        let (for_agents, placed) = transport(arguments);
        let total: Option<usize> = contexts.iter().map(|c| c.ranks).sum();
        let slots = (!hosts.is_empty()).then(|| hosts.iter().map(|h| h.slots).sum());
        let asked = Asked { ranks: total, slots };
        let total = total.or(slots);
        // Where the engine fills hosts in order it is known which of them get no rank. Where it is told otherwise
        // every host gets an agent, and one without ranks leaves as soon as all ranks are somewhere.
        let agent_hosts = match total {
            Some(n) if !placed => hosts::used(hosts, n),
            _ => hosts.to_vec(),
        };
        let agent_hosts: Vec<Host> = agent_hosts.into_iter().map(|h| Host { slots: 1, ..h }).collect();
        let rank = |context: &Context| -> Vec<OsString> {
            let head =
                [exec.clone().into_os_string(), "exec".into(), "--socket".into(), (&spec.socket).into()];
            let more = for_exec.iter().map(OsString::from).chain(["--".into()]);
            head.into_iter().chain(more).chain(context.command.iter().cloned()).collect()
        };
        let nodes = std::env::var("SLURM_JOB_NUM_NODES").or_else(|_| std::env::var("SLURM_NNODES")).ok();
        let count = if agent_hosts.is_empty() { None } else { Some(agent_hosts.len()) };
        let inherited = inherited(arguments, spec, &exec);
        let mut plan = match engine {
            Engine::Local => local(agent, contexts, &rank, spec)?,
            Engine::OpenMpi { mpirun, .. } => {
                let agents = Line::new(mpirun).words(&for_agents);
                let agents = match count {
                    Some(n) => agents.words(["--host", &hosts::list(&agent_hosts), "-np", &n.to_string()]),
                    None => agents.words(["--map-by", "ppr:1:node"]),
                };
                let agents = agents.words(["--bind-to", "none"]).words([agent]).words(spec.arguments());
                let mut ranks = Line::new(mpirun).words(arguments);
                for (name, value) in inherited.iter().flatten() {
                    ranks = ranks.words(["-x", &format!("{name}={value}")]);
                }
                for (i, context) in contexts.iter().enumerate() {
                    ranks = if i > 0 { ranks.words([":"]) } else { ranks };
                    if !hosts.is_empty() {
                        ranks = ranks.words(["--host", &hosts::list(hosts)]);
                    }
                    if let Some(n) = context.ranks {
                        ranks = ranks.words(["-np", &n.to_string()]);
                    }
                    ranks = ranks.words(rank(context));
                }
                Plan { agents, agent_count: count, ranks: vec![ranks], asked }
            }
            Engine::Mpich { mpirun, .. } => {
                let names = |list: &[Host]| list.iter().map(|h| h.name.clone()).collect::<Vec<_>>().join(",");
                let agents = Line::new(mpirun).words(&for_agents);
                let agents = match (count, &nodes) {
                    (Some(n), _) => {
                        agents.words(["-hosts", &names(&agent_hosts), "-ppn", "1", "-n", &n.to_string()])
                    }
                    (None, Some(nodes)) => agents.words(["-ppn", "1", "-n", nodes]),
                    (None, None) => agents.words(["-n", "1"]),
                };
                let agents = agents.words(["-bind-to", "none"]).words([agent]).words(spec.arguments());
                let mut ranks = Line::new(mpirun).words(arguments);
                for (name, value) in inherited.iter().flatten() {
                    ranks = ranks.words(["-genv", name, value]);
                }
                if !hosts.is_empty() {
                    ranks = ranks.words(["-hosts", &hosts::list(hosts)]);
                }
                for (i, context) in contexts.iter().enumerate() {
                    ranks = if i > 0 { ranks.words([":"]) } else { ranks };
                    if let Some(n) = context.ranks.or(total) {
                        ranks = ranks.words(["-n", &n.to_string()]);
                    }
                    ranks = ranks.words(rank(context));
                }
                Plan { agents, agent_count: count, ranks: vec![ranks], asked }
            }
            Engine::Slurm { srun } => {
                let plan = slurm(srun, agent, hosts, contexts, arguments, &for_agents, nodes, spec, &rank);
                Plan { asked, ..plan }
            }
        };
        if std::env::var_os("SLURM_JOB_ID").is_some() {
            // Without it the second job of the allocation waits for the first to end.
            for line in plan.ranks.iter_mut().chain([&mut plan.agents]) {
                line.variables.push(("SLURM_OVERLAP".into(), "1".into()));
            }
        }
        Ok(plan)
    }
}

/// What processes that the program spawns later (MPI_Comm_spawn) inherit through the engine: `hostbuf exec` is not in
/// front of them. The ranks' own values are set by `hostbuf exec`. `None` where the user's options leave no room.
fn inherited(arguments: &[OsString], spec: &Spec, exec: &Path) -> Option<Vec<(&'static str, String)>> {
    let mentions = |word: &str| arguments.iter().any(|a| a.to_string_lossy().contains(word));
    // Open MPI refuses -x beside this list.
    let list = "mca_base_env_list";
    if mentions("LD_PRELOAD") || mentions(list) || std::env::var_os(format!("OMPI_MCA_{list}")).is_some() {
        return None;
    }
    let mut variables = vec![
        (ENV_JOB, spec.socket.clone()),
        (ENV_PREFIX, exec.display().to_string()),
        (ENV_ADDRESS_ROOM, ROOM.to_owned()),
        (ENV_SIZE_ROOM, ROOM.to_owned()),
    ];
    if let Some(object) = preload_file::installed() {
        let theirs = std::env::var("LD_PRELOAD")
            .ok()
            .filter(|l| !l.is_empty())
            .map_or(String::new(), |l| format!(":{l}"));
        variables.push(("LD_PRELOAD", format!("{}{theirs}", object.display())));
    }
    Some(variables)
}

fn local(
    agent: &Path,
    contexts: &[Context],
    rank: &dyn Fn(&Context) -> Vec<OsString>,
    spec: &Spec,
) -> Result<Plan> {
    let counted: Vec<(usize, &Context)> = contexts.iter().map(|c| (c.ranks.unwrap_or(1), c)).collect();
    let size: usize = counted.iter().map(|(n, _)| n).sum();
    if size > MOST_LOCAL {
        let what = format!(
            "-n {size}: on one host, without an MPI, at most {MOST_LOCAL} ranks are started; ask for fewer"
        );
        return Err(Error::Invalid { what });
    }
    let each = counted.iter().flat_map(|&(n, context)| std::iter::repeat_n(context, n));
    let ranks = each.enumerate().map(|(number, context)| {
        let mut line = Line { words: rank(context), variables: Vec::new(), script: None };
        let place = [("RANK", number), ("RANKS", size), ("LOCAL_RANK", number), ("LOCAL_SIZE", size)];
        for (name, value) in place {
            line.variables.push((format!("HOSTBUF_{name}"), value.to_string()));
        }
        line
    });
    Ok(Plan {
        agents: Line::new(agent).words(["agent"]).words(spec.arguments()),
        agent_count: Some(1),
        ranks: ranks.collect(),
        asked: Asked::default(),
    })
}

#[allow(clippy::too_many_arguments, reason = "one engine's part of Plan::new, which has them all")]
fn slurm(
    srun: &Path,
    agent: &Path,
    hosts: &[Host],
    contexts: &[Context],
    arguments: &[OsString],
    for_agents: &[OsString],
    nodes: Option<String>,
    spec: &Spec,
    rank: &dyn Fn(&Context) -> Vec<OsString>,
) -> Plan {
    let on_hosts = |line: Line| {
        if hosts.is_empty() {
            return line;
        }
        let names = hosts.iter().map(|h| h.name.clone()).collect::<Vec<_>>().join(",");
        line.words(["-w", &names, "-N", &hosts.len().to_string()])
    };
    let nodes = if hosts.is_empty() { nodes.unwrap_or("1".into()) } else { hosts.len().to_string() };
    // The agent's MPI must speak the same protocol: MPICH's own is PMI-2 here, Open MPI's is PMIx.
    let mpich = agent.file_name().is_some_and(|n| n.to_string_lossy().contains("mpich"));
    let protocol = if mpich { "--mpi=pmi2" } else { "--mpi=pmix" };
    let agents =
        on_hosts(Line::new(srun).words(["--overlap", "--quiet", "--kill-on-bad-exit=1"]).words(for_agents));
    let mut agents = agents
        .words([
            "-N",
            &nodes,
            "-n",
            &nodes,
            "--ntasks-per-node=1",
            "--cpu-bind=none",
            "--input=none",
            protocol,
        ])
        .words([agent])
        .words(spec.arguments());
    // Under srun, Open MPI's own transport (ob1) crashes now and then when a message reaches a rank that is still in
    // MPI_Init (4.1: 1 to 7 of 100 jobs); over UCX, where it is there, it does not.
    for name in ["OMPI_MCA_pml_ucx_tls", "OMPI_MCA_pml_ucx_devices"] {
        if !mpich && std::env::var_os(name).is_none() {
            agents.variables.push((name.into(), "any".into()));
        }
    }
    let mut ranks = on_hosts(Line::new(srun).words(["--overlap"]).words(arguments));
    let total: Option<usize> = contexts.iter().map(|c| c.ranks).sum();
    if let Some(n) = total.or_else(|| (!hosts.is_empty()).then(|| hosts.iter().map(|h| h.slots).sum())) {
        ranks = ranks.words(["-n", &n.to_string()]);
    }
    if let [context] = contexts {
        ranks = ranks.words(rank(context));
    } else {
        // srun knows several programs only from a file: ranges of ranks, then a command line in quotes of its own.
        let mut script = String::new();
        let mut first = 0;
        for context in contexts {
            let n = context.ranks.unwrap_or(1);
            let quote = |w: &OsString| format!("'{}'", w.to_string_lossy().replace('\'', "'\\''"));
            let words: Vec<String> = rank(context).iter().map(quote).collect();
            script += &format!("{first}-{} {}\n", first + n - 1, words.join(" "));
            first += n;
        }
        ranks = ranks.words(["--multi-prog", ""]);
        ranks.script = Some((script, ranks.words.len() - 1));
    }
    Plan { agents, agent_count: nodes.parse().ok(), ranks: vec![ranks], asked: Asked::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::Options;
    use std::path::PathBuf;

    fn plan(
        engine: &Engine,
        hosts: &str,
        ranks: Option<usize>,
        command: &[&str],
        arguments: &[&str],
    ) -> Plan {
        let spec = Spec {
            job: 1,
            socket: "s".into(),
            buffers: vec![Options::new(4096)],
            listener: None,
            lifeline: None,
            reports: true,
            ends_processes: false,
            program: None,
            timeout: None,
        };
        let hosts = if hosts.is_empty() { Vec::new() } else { hosts::parse(hosts).unwrap() };
        let contexts = Context::split(ranks, command.iter().map(OsString::from).collect()).unwrap();
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let registering = ["--register=mlock".to_owned()];
        Plan::new(engine, Path::new("/agent"), &hosts, &contexts, &arguments, &spec, &registering).unwrap()
    }

    fn text(line: &Line) -> String {
        line.words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn open_mpi_places_agents_only_where_ranks_land() {
        let engine = Engine::OpenMpi { mpirun: PathBuf::from("mpirun"), major: 4 };
        let plan = plan(&engine, "h0:2,h1:2,h2:2", Some(3), &["./a", ":x"], &["--mca", "btl", "tcp,self"]);
        assert!(
            text(&plan.agents)
                .starts_with("mpirun --mca btl tcp,self --host h0:1,h1:1 -np 2 --bind-to none /agent")
        );
        assert!(text(&plan.ranks[0]).contains("--host h0:2,h1:2,h2:2 -np 3"));
        assert!(text(&plan.ranks[0]).ends_with("exec --socket s --register=mlock -- ./a :x"));
    }

    #[test]
    fn placing_options_are_the_programs_alone_and_widen_the_agents() {
        let engine = Engine::OpenMpi { mpirun: PathBuf::from("mpirun"), major: 4 };
        let plan =
            plan(&engine, "h0:2,h1:2", Some(2), &["./a"], &["--map-by", "node", "--bind-to=core", "-x", "A"]);
        assert!(
            text(&plan.agents).starts_with("mpirun -x A --host h0:1,h1:1 -np 2"),
            "{}",
            text(&plan.agents)
        );
        assert!(text(&plan.ranks[0]).contains("--map-by node --bind-to=core -x A"));
    }

    #[test]
    fn several_programs() {
        let engine = Engine::Mpich { mpirun: PathBuf::from("mpiexec"), major: 4 };
        let plan = plan(&engine, "h0:2,h1:2", Some(1), &["./a", ":", "-n", "3", "--", "./b", "y"], &[]);
        let ranks = text(&plan.ranks[0]);
        assert!(
            ranks.contains("-n 1") && ranks.contains("-- ./a : -n 3") && ranks.ends_with("-- ./b y"),
            "{ranks}"
        );
        for bad in [&["./a", ":", "./b"][..], &["./a", ":"], &["./a", ":", "-n", "x", "./b"]] {
            assert!(Context::split(Some(1), bad.iter().map(OsString::from).collect()).is_err());
        }
    }

    #[test]
    fn local_ranks_know_their_place() {
        let plan = plan(&Engine::Local, "", Some(2), &["./a", ":", "-n", "1", "./b"], &[]);
        assert_eq!(plan.ranks.len(), 3);
        assert!(text(&plan.ranks[2]).ends_with(" exec --socket s --register=mlock -- ./b"));
        assert!(plan.ranks[2].variables.contains(&("HOSTBUF_RANK".into(), "2".into())));
        assert!(plan.ranks[0].variables.contains(&("HOSTBUF_RANKS".into(), "3".into())));
    }
}
