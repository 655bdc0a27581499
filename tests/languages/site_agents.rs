//! Agents that scripts/install builds with MPIs in any folder, by a stand-in for scripts/build.

use hostbuf_tests::{CommandOutput, Scratch, root, skip};

use crate::installation::Installation;

/// A copy of the sources in `src`, whose scripts/build copies a finished agent for each of its
/// arguments. `$MPIS` has the MPIs of PyPI.
const SOURCES: &str = r#"
    mkdir -p src/target/libexec/hostbuf src/tmp
    export TMPDIR=$PWD/src/tmp
    for entry in "$ROOT"/*; do
        case ${entry##*/} in target | scripts) ;; *) ln -s "$entry" src/ ;; esac
    done
    cp -r "$ROOT/scripts" src/
    ln -s "$ROOT/target/release" "$ROOT/target/lib" src/target/
    printf '%s\n' '#!/bin/bash' 'cd "$(dirname "$0")/.."' \
        'for word in mpi-abi "$@"; do case $word in *=*) echo "$word" >>target/libexec/agents ;; esac' \
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
fn an_agent_is_not_lost_with_its_mpi() {
    let script = r#"
        cp -r --no-dereference $MPIS/openmpi5/. gone
        src/scripts/install --prefix p openmpi5=$PWD/gone >said
        mv gone away
        ! src/scripts/install --prefix p 2>&1 >said | sed 's/^.*cannot be built again/cannot be built again/'
        agents p; cat p/share/hostbuf/agents
        printf '#!/bin/sh\necho "no icx here" >&2; exit 1\n' >false; chmod +x false
        mkdir -p gone/bin; cp false gone/bin/mpicc
        ! src/scripts/install --prefix p 2>&1 >said | sed 's/^.*does not work/does not work/'
        # An Open MPI with the name of MPICH's library.
        mkdir -p old/bin old/lib; touch old/lib/libmpi.so.12
        printf '#!/bin/sh\nexec %s/openmpi5/bin/mpicc "$@"\n' $MPIS >old/bin/mpicc; chmod +x old/bin/mpicc
        ! src/scripts/install --prefix old-mpi mpich-abi=$PWD/old 2>&1 | sed 's/^.* is Open MPI 5/is Open MPI 5/'
        # The command line decides, and a build for root is kept, too.
        src/scripts/install --prefix p openmpi5=$MPIS/openmpi5 >said && cat p/share/hostbuf/agents
        src/scripts/install --no-build --prefix root openmpi5 >said && cat root/share/hostbuf/agents | tail -n 1
        # The standard agent alone.
        src/scripts/install --prefix standard mpi-abi >said; agents standard
    "#;
    let Some(outcome) = run("lost", script) else { return };
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let openmpi = format!("openmpi5={}", root().join("target/pypi-mpi/openmpi5").display());
    assert!(
        lines[0].contains("there is no compiler") && lines[0].contains("Name another folder"),
        "{outcome:?}"
    );
    assert!(lines[1].contains("openmpi5") && lines[2].ends_with("/gone"), "{outcome:?}");
    assert!(lines[3].starts_with("does not work: no icx here. Name another folder"), "{outcome:?}");
    assert!(lines[4].contains("this agent is for the ABI of MPICH"), "{outcome:?}");
    assert!(lines[5..].contains(&openmpi.as_str()), "{outcome:?}");
    assert_eq!(lines[lines.len() - 2..], [openmpi.as_str(), "mpi-abi"], "{outcome:?}");
}

#[test]
fn nothing_is_left_of_an_installation_that_was_killed() {
    let script = r#"
        # The second file is never moved to its place.
        mkdir with && printf '#!/bin/sh\n[ ! -e moved ] || { kill -9 $PPID; exit; }; touch moved; exec /bin/mv "$@"\n' >with/mv
        chmod +x with/mv
        sed -i "s|moved|$PWD/moved|g" with/mv
        PATH=$PWD/with:$PATH src/scripts/install --no-build --prefix p || true
        find p -name '.*.new' | wc -l
        src/scripts/install --no-build --prefix p >said
        find p -name '.*.new' | wc -l
        src/scripts/install --prefix p --uninstall >said
        ls -d p 2>said || echo removed
    "#;
    let Some(outcome) = run("killed", script) else { return };
    assert_eq!(outcome.stdout, "1\n0\nremoved\n", "{outcome:?}");
}

#[test]
fn an_installation_waits_for_another() {
    let script = r"
        waits() {
            for _ in $(seq 3000); do grep -q waiting said && return; sleep 0.01; done
            cat said; return 1
        }
        mkdir prefix && mkfifo held hold
        flock prefix sh -c 'echo >held; read line <hold' &
        read line <held
        src/scripts/install --no-build --prefix prefix >said &
        waits
        ls prefix
        echo >hold
        wait
        grep -c installed said
        # The folder was removed meanwhile.
        flock prefix sh -c 'echo >held; read line <hold' &
        read line <held
        src/scripts/install --no-build --prefix prefix >said &
        waits
        rm -r prefix
        echo >hold
        wait
        src/scripts/install --prefix prefix --uninstall | grep -c removed
        ls -d prefix 2>said || echo gone
        # Without locks, as on some file systems, an installation runs.
        mkdir none && printf '#!/bin/sh\nexit 65\n' >none/flock && chmod +x none/flock
        PATH=$PWD/none:$PATH src/scripts/install --no-build --prefix prefix | grep -c installed
    ";
    let Some(outcome) = run("waiting", script) else { return };
    assert_eq!(outcome.stdout, "1\n1\ngone\n1\n", "{outcome:?}");
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
