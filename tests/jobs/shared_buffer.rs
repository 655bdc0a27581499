//! A buffer that the ranks of a host share, in a minimal job of each installed engine.

use std::path::Path;

use hostbuf_tests::{can_simulate, fixture, flavours, local, simulated, skip};

const ADDRESS: &str = "0x550000000000";

#[test]
fn local_ranks_share_one_buffer_before_their_constructors() {
    let show = fixture("cc", "show.c", &[]).unwrap();
    let outcome = local(4, "16M", &[], &[show.to_str().unwrap()]).ok();
    let mut counts: Vec<u64> = Vec::new();
    for line in outcome.lines("buffer ") {
        let [address, size, count] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!((address, size), (ADDRESS, "16777216"));
        counts.push(count.parse().unwrap());
    }
    // Every constructor incremented the same counter; the last one read four.
    assert_eq!((counts.len(), counts.iter().max()), (4, Some(&4)), "{counts:?}");
}

#[test]
fn every_mpi_gives_every_host_the_same_address() {
    if !can_simulate() {
        return;
    }
    let show = fixture("cc", "show.c", &[]).unwrap();
    for flavour in flavours() {
        let script =
            format!("$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --size 4M -- {}", show.display());
        let outcome = simulated(2, &flavour, &script).ok();
        let lines = outcome.lines("buffer ");
        assert_eq!(lines.len(), 4, "{flavour}: {outcome:?}");
        for line in lines {
            assert!(line.starts_with(&format!("{ADDRESS} 4194304 ")), "{flavour}: {line}");
        }
    }
}

/// `shmem_enabled` set to `always` would make huge pages of the small ones, which were placed.
#[test]
fn only_a_buffer_of_small_pages_is_excluded_from_huge_pages() {
    let huge_pages = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    if !Path::new(huge_pages).exists() {
        skip("the advice against huge pages: this kernel has none");
        return;
    }
    let script = "sed -n '/^550000000000-/,/^VmFlags/p' /proc/self/smaps | grep ^VmFlags";
    for (pages, excluded) in [("4k", true), ("auto", false)] {
        let outcome = local(1, "4M", &["--pages", pages], &["bash", "-c", script]).ok();
        let flags = outcome.lines("VmFlags: ").pop().expect("the buffer is mapped");
        assert_eq!(flags.split(' ').any(|flag| flag == "nh"), excluded, "{pages}: {flags}");
    }
}
