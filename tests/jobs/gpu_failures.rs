//! The errors of jobs with GPU sections name the cause, the limit and the remedy. They use the fake
//! driver of `gpu_sections.rs`.

use crate::gpu_sections::FakeGpus;

#[test]
fn a_limited_address_space_is_named_and_not_the_buffer() {
    let Some(gpus) = FakeGpus::new("gpu-limited") else { return };
    for ranks in ["all", "leader"] {
        let options = ["-n", "2", "--gpu-ranks", ranks, "--section", "name=table,size=4G,gpu=0"];
        let outcome = gpus.limited_job("ulimit -v 500000", &[], &options, &["echo", "ran"]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (84, ""), "{outcome:?}");
        assert_eq!(outcome.said().len(), 1, "{outcome:?}");
        for words in ["rank 0 on ", "4 GiB at 0x", "is limited to 488.3 MiB (RLIMIT_AS): raise `ulimit -v`"] {
            assert!(outcome.stderr.contains(words), "{words}: {outcome:?}");
        }
        assert!(!outcome.stderr.contains("memfd"), "{outcome:?}");
    }
}
