//! The pages docs/c.md, docs/cpp.md and docs/fortran.md. The patch of each page makes its program
//! share memory, compiles without a warning, and does not change the program's output. The programs
//! run on two simulated hosts of two ranks, by one Open MPI and one MPICH.

use std::fs;

use hostbuf_tests::{can_simulate, flavours, root, simulated, skip};

const C: &str = "$MPICC -std=c11 -O1 -Wall -Wextra -pedantic -Werror";
const CPP: &str =
    "$bin/mpicxx$of -std=c++17 -O1 -Wall -Wextra -pedantic -Werror -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX";
/// Fill functions have an argument that some do not use.
const FORTRAN: &str =
    "$bin/mpifort$of -O1 -Wall -Werror -Wno-unused-dummy-argument -J $made -I $made $modules";

/// Returns the patch of a page, which has exactly one.
pub fn patch(page: &str) -> String {
    let text = fs::read_to_string(root().join("docs").join(page)).expect("the page is there");
    let (_, rest) = text.split_once("```diff\n").expect("the page has a patch");
    let (patch, rest) = rest.split_once("```\n").expect("the patch ends");
    assert!(!rest.contains("```diff"), "{page} has more than one patch");
    patch.to_owned()
}

/// Returns the first flavour of each MPI that is present.
pub fn one_of_each() -> Vec<String> {
    let engine = |flavour: &String| flavour.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let mut found = flavours();
    found.sort();
    found.dedup_by_key(|flavour| engine(flavour));
    found
}

/// Applies the patch of `page` to `source`, builds both versions with `builder`, and runs both with
/// and without a launcher. The output of all is `wanted`.
fn guide(page: &str, builder: &str, source: &str, wanted: &str) {
    if !root().join("target/lib/libhostbuf.so").exists() {
        return skip(&format!("{page}: there is no libhostbuf (scripts/build)"));
    }
    if !can_simulate() {
        return;
    }
    let patch = patch(page);
    for flavour in &one_of_each() {
        // A shell's own pid is the same on all simulated hosts.
        let name = format!("guide-{source}-{}", std::process::id());
        let script = format!(
            r#"bin=$(dirname $MPICC); of=$(basename $MPICC); of=${{of#mpicc}}
               made=$PWD/target/fixtures/{name}-$MPI_FLAVOUR; mkdir -p $made/examples/guide; trap 'rm -rf $made' EXIT
               modules=""
               {builder} examples/guide/{source} -o $made/before 2>$made/said || {{ cat $made/said; exit 90; }}
               cp examples/guide/{source} $made/examples/guide/
               patch -s -d $made -p1 --fuzz=0 <<'PATCH' || exit 91
{patch}PATCH
               modules="bindings/fortran/hostbuf.f90 bindings/fortran/hostbuf_mpi.f90"
               {builder} $made/examples/guide/{source} -o $made/after -Iinclude -Ltarget/lib -lhostbuf \
                   -Wl,-rpath,$PWD/target/lib 2>$made/said || {{ cat $made/said; exit 92; }}
               $MPIRUN $MPIRUN_FLAGS -np 4 $MPI_HOSTS_OPTION h0:2,h1:2 $made/before || exit
               # A program that does not know of the buffer does what it did.
               run="env ${{MPI_SHIM:+LD_PRELOAD=$MPI_SHIM}} $HOSTBUF run -n 4 --mpirun $MPIRUN --host h0:2,h1:2 --size 64M --"
               $run $made/before || exit
               $run $made/after || exit
               $MPIRUN $MPIRUN_FLAGS -np 4 $MPI_HOSTS_OPTION h0:2,h1:2 $made/after"#
        );
        let outcome = simulated(2, flavour, &script);
        if outcome.status == 90 {
            // Some MPIs lack the compilers of some languages.
            skip(&format!("{page} under {flavour}: it cannot be built there: {}", outcome.stdout.trim()));
            continue;
        }
        let said = outcome.ok().stdout;
        assert_eq!(said.lines().collect::<Vec<_>>(), [wanted; 4], "{page} under {flavour}");
    }
}

/// `patch` also finds hunks at other lines, and prints the offset.
#[test]
fn the_hunks_of_each_patch_are_at_their_line_numbers() {
    for (page, source) in [
        ("c.md", "charges.c"),
        ("cpp.md", "words.cpp"),
        ("fortran.md", "opacity.f90"),
        ("python.md", "spectrum.py"),
    ] {
        let text = fs::read_to_string(root().join("examples/guide").join(source)).expect("it is there");
        let lines: Vec<&str> = text.lines().collect();
        // The numbers of lines before the current one in the old and the new file.
        let (mut old, mut new) = (0, 0);
        for line in patch(page).lines().skip(2) {
            if let Some(head) = line.strip_prefix("@@ -") {
                let start: usize = head.split(',').next().expect("a number").parse().expect("a number");
                new = new + start - 1 - old;
                old = start - 1;
                assert!(head.contains(&format!(" +{},", new + 1)), "{page}: {line}");
                continue;
            }
            let (kind, text) = line.split_at_checked(1).unwrap_or((" ", ""));
            if kind != "+" {
                assert_eq!(lines.get(old), Some(&text), "{page}, line {} of {source}", old + 1);
                old += 1;
            }
            new += usize::from(kind != "-");
        }
    }
}

#[test]
fn the_patch_of_the_page_for_c_applies_and_runs() {
    guide("c.md", C, "charges.c", "100000 atoms, energy 6687, in 4 ranks");
}

#[test]
fn the_patch_of_the_page_for_cpp_applies_and_runs() {
    guide("cpp.md", CPP, "words.cpp", "5003 different words, sum 249951710, in 4 ranks");
}

#[test]
fn the_patch_of_the_page_for_fortran_applies_and_runs() {
    guide("fortran.md", FORTRAN, "opacity.f90", "opacities' sum 20000189. in 4 ranks");
}

#[test]
fn the_pages_contain_the_output_of_the_programs() {
    for (page, wanted) in
        [("c.md", "energy 6687"), ("cpp.md", "sum 249951710"), ("fortran.md", "sum 20000189.")]
    {
        let text = fs::read_to_string(root().join("docs").join(page)).expect("the page is there");
        assert!(text.contains(wanted), "{page} does not say {wanted}");
    }
}
