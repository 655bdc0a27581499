//! Each example on two simulated hosts of two ranks, in the launcher's buffer and in one that it
//! allocates, by every installed MPI. All use the same libhostbuf, which is built without any MPI.

use hostbuf_tests::{can_simulate, flavours, root, simulated, skip};

/// The commands that build an example. `$bin` is the folder of `$MPICC`, and `$of` its suffix on
/// Debian.
const C: &str = "$MPICC -std=c11 -O1 -Wall -Wextra -pedantic";
const CPP: &str =
    "$bin/mpicxx$of -std=c++17 -O1 -Wall -Wextra -pedantic -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX";
const FORTRAN: &str =
    "$bin/mpifort$of -O1 -J $made -I $made bindings/fortran/hostbuf.f90 bindings/fortran/hostbuf_mpi.f90";

/// Builds `source`, and runs it in all ways by every installed MPI.
fn example(builder: &str, source: &str, wanted: &[&str]) {
    by(&flavours(), builder, source, wanted);
}

/// Builds and runs with the address and the undefined-behaviour sanitizers, by the first MPI found.
/// Leaks are ignored, because the MPI has some.
fn sanitized(builder: &str, source: &str, wanted: &[&str]) {
    let builder = format!(
        "before='env ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0'
               {builder} -g -fsanitize=address,undefined -fno-sanitize-recover=all"
    );
    let mut flavours = flavours();
    flavours.truncate(1);
    by(&flavours, &builder, source, wanted);
}

/// Builds `source`, and runs it under `hostbuf run` and under plain `mpirun`; the output of each
/// contains `wanted`.
fn by(flavours: &[String], builder: &str, source: &str, wanted: &[&str]) {
    if !root().join("target/lib/libhostbuf.so").exists() {
        return skip(&format!("{source}: there is no libhostbuf (scripts/build)"));
    }
    if !can_simulate() {
        return;
    }
    // A shell's own pid is the same on all simulated hosts.
    let name = format!("{}-{}", source.replace('/', "-"), std::process::id());
    let mut ran = 0;
    for flavour in flavours {
        let script = format!(
            r#"bin=$(dirname $MPICC); of=$(basename $MPICC); of=${{of#mpicc}}
               made=$PWD/target/fixtures/{name}-$MPI_FLAVOUR; mkdir -p $made; trap 'rm -rf $made' EXIT
               {builder} examples/{source} -o $made/program -Iinclude -Ltarget/lib -lhostbuf -Wl,-rpath,$PWD/target/lib 2>$made/said ||
                   {{ cat $made/said; exit 90; }}
               if [[ -s $made/said ]]; then cat $made/said; exit 91; fi
               # Debian's MPICH needs it to end (scripts/mpich-shim.c).
               env ${{MPI_SHIM:+LD_PRELOAD=$MPI_SHIM}} $HOSTBUF run -n 4 --mpirun $MPIRUN --host h0:2,h1:2 --size 64M -- $before $made/program || exit
               $MPIRUN $MPIRUN_FLAGS -np 4 $MPI_HOSTS_OPTION h0:2,h1:2 $before $made/program"#
        );
        let outcome = simulated(2, flavour, &script);
        if outcome.status == 90 {
            // Some MPIs lack the compilers of some languages.
            skip(&format!("{source} under {flavour}: it cannot be built there: {}", outcome.stdout.trim()));
            continue;
        }
        let said = outcome.ok().stdout;
        for wanted in wanted {
            assert_eq!(said.matches(wanted).count(), 2, "{flavour} has not said twice \"{wanted}\":\n{said}");
        }
        ran += 1;
    }
    assert!(ran > 0 || flavours.is_empty(), "{source} ran under no MPI");
}

const POINTERS: [&str; 2] = ["20000 words, 13768 of them different", "in 4 ranks; 0 wrong; sealed in 4"];
const WORDS: [&str; 1] = ["4096 different words of 20000, in 4 ranks; 0 of them find something else; sealed"];

#[test]
fn pointer_table_runs_by_every_mpi() {
    example(C, "c/pointer_table.c", &POINTERS);
}

#[test]
fn word_map_runs_by_every_mpi() {
    example(CPP, "cpp/word_map.cpp", &WORDS);
}

#[test]
fn pointer_table_runs_with_sanitizers() {
    sanitized(C, "c/pointer_table.c", &POINTERS);
}

#[test]
fn word_map_runs_with_sanitizers() {
    sanitized(CPP, "cpp/word_map.cpp", &WORDS);
}

#[test]
fn cross_sections_runs_by_every_mpi() {
    example(
        FORTRAN,
        "fortran/cross_sections.f90",
        &["60 nuclides at 2000 energies in 4 ranks; 0 values are wrong; sealed"],
    );
}
