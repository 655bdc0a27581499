//! The agents for the binary interfaces that several MPIs have in common.

use std::path::{Path, PathBuf};
use std::process::Command;

use hostbuf_tests::{
    CommandOutput, agent_of, can_simulate, fixture, flavours, hostbuf, root, simulated, skip,
};

/// The agents, each with the library of its interface.
const AGENTS: [(&str, &str); 2] =
    [("hostbuf-agent-mpi-abi", "libmpi_abi.so.1"), ("hostbuf-agent-mpich-abi", "libmpi.so.12")];

/// Returns the path of an agent, if it is built.
fn built(agent: &str) -> Option<PathBuf> {
    let path = root().join("target/libexec/hostbuf").join(agent);
    if !path.is_file() {
        skip(&format!("{agent}: it is not built (scripts/build)"));
        return None;
    }
    Some(path)
}

/// Returns the folder of the libraries of an MPI that has a prefix of its own.
fn libraries(flavour: &str) -> PathBuf {
    root().join("target/pypi-mpi").join(flavour).join("lib")
}

#[test]
fn one_agent_serves_every_mpi_with_its_interface() {
    if !can_simulate() {
        return;
    }
    let show = fixture("cc", "show.c", &[]).unwrap().display().to_string();
    for (agent, library) in AGENTS {
        let Some(path) = built(agent) else { continue };
        let served = flavours().into_iter().filter(|flavour| libraries(flavour).join(library).exists());
        let mut count = 0;
        for flavour in served {
            let script = format!(
                "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --agent {} --size 1M -- {show}",
                path.display()
            );
            let outcome = simulated(2, &flavour, &script).ok();
            let lines = outcome.lines("buffer 0x550000000000 1048576 ");
            assert_eq!(lines.len(), 4, "{agent} with {flavour}: {outcome:?}");
            count += 1;
        }
        if count < 2 {
            skip(&format!("{agent} with several MPIs: {count} with {library} installed"));
        }
    }
}

#[test]
fn collective_operations_over_the_standard_interface_are_right() {
    if !can_simulate() {
        return;
    }
    let (_, library) = AGENTS[0];
    let program = hostbuf_tests::program("abi_collective").display().to_string();
    let mut count = 0;
    for flavour in flavours() {
        let folder = libraries(&flavour);
        if !folder.join(library).exists() {
            continue;
        }
        let script = format!(
            "$HOSTBUF run -n 3 --host h0:2,h1:1 --mpirun $MPIRUN --size 1M -- env LD_LIBRARY_PATH={} {program}",
            folder.display()
        );
        let outcome = simulated(2, &flavour, &script).ok();
        assert_eq!(outcome.lines("ok ").len(), 3, "{flavour}: {outcome:?}");
        count += 1;
    }
    if count == 0 {
        skip(&format!("collective operations over {library}: no MPI has it"));
    }
}

/// Each agent would be a job of its own, and the hosts would have different addresses.
#[test]
fn an_agent_of_another_mpi_is_refused() {
    let found = flavours();
    let other = ["openmpi4", "mpich4"];
    if !can_simulate() || !other.iter().all(|flavour| found.iter().any(|found| found == flavour)) {
        return skip("an agent of another MPI: Debian's Open MPI and MPICH are not both here");
    }
    for (flavour, agent) in [("openmpi4", "mpich4"), ("mpich4", "openmpi4")] {
        let script = format!(
            "$HOSTBUF run -n 2 --host h0:1,h1:1 --mpirun $MPIRUN --agent {} --size 1M -- echo ran",
            agent_of(agent).display()
        );
        let outcome = simulated(2, flavour, &script);
        assert_eq!(outcome.status, 86, "{flavour}: {outcome:?}");
        assert!(outcome.stderr.contains("knows of no other agent, though "), "{flavour}: {outcome:?}");
        assert!(outcome.lines("ran").is_empty(), "{flavour}: {outcome:?}");
    }
}

/// An agent may be installed on another machine than the one that built it.
#[test]
fn no_agent_contains_a_folder_of_libraries() {
    let shared = AGENTS.iter().filter_map(|(agent, _)| built(agent));
    let mut count = 0;
    for agent in flavours().iter().map(|flavour| agent_of(flavour)).chain(shared) {
        let dynamic = CommandOutput::of(Command::new("readelf").arg("-d").arg(&agent)).ok().stdout;
        assert!(dynamic.contains("(NEEDED)"), "{}: {dynamic}", agent.display());
        for entry in ["(RPATH)", "(RUNPATH)"] {
            assert!(!dynamic.contains(entry), "{}: {dynamic}", agent.display());
        }
        count += 1;
    }
    if count == 0 {
        skip("agents without folders: none is built (scripts/build)");
    }
}

#[test]
fn doctor_states_the_agent_of_each_mpi() {
    for flavour in flavours() {
        let bin = libraries(&flavour).with_file_name("bin");
        // A copy of hostbuf that has only the agents of interfaces beside it.
        if !bin.is_dir() {
            continue;
        }
        for (agent, library) in AGENTS {
            let Some(path) = built(agent) else { continue };
            let folder = hostbuf_tests::Scratch::new(&format!("doctor-{agent}-{flavour}"));
            std::fs::copy(hostbuf(), folder.path("hostbuf")).unwrap();
            std::fs::copy(&path, folder.path(agent)).unwrap();
            let mut command = Command::new(folder.path("hostbuf"));
            command.arg("doctor").env("PATH", path_behind(&bin));
            let said = CommandOutput::of(&mut command).stdout;
            // Other MPIs of the machine may have the interface too.
            let line = said.lines().find(|line| line.contains(&format!("{}/", bin.display())));
            let line = line.unwrap_or_else(|| panic!("nothing about {}: {said}", bin.display()));
            let is_stated = line.contains(&folder.path(agent));
            let has_interface = libraries(&flavour).join(library).exists();
            assert_eq!(is_stated, has_interface, "{agent} for {flavour}: {said}");
        }
    }
}

/// Returns the search path of commands with `folder` in front.
fn path_behind(folder: &Path) -> String {
    format!("{}:/usr/bin:/bin", folder.display())
}
