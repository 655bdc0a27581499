//! The rank that decides the exit status of a job, if several end at about the same time.

use hostbuf_tests::{Scratch, local};

/// The program of a job of three ranks. While the launcher is stopped, SIGKILL ends rank 1, and
/// then rank 0 exits with status 3. Rank 2 continues the launcher, which finds both at once, rank 0
/// first.
const ENDING: &str = r#"
state() { while read -r key value _; do [ "$key" = State: ] && echo "$value"; done < "/proc/$1/status"; }
await() { until [ "$(state "$1")" = "$2" ]; do :; done; }
pid_of() { until [ -s "$FOLDER/$1" ]; do :; done; cat "$FOLDER/$1"; }
echo $$ > "$FOLDER/new-$HOSTBUF_RANK"
mv "$FOLDER/new-$HOSTBUF_RANK" "$FOLDER/$HOSTBUF_RANK"
case $HOSTBUF_RANK in
    0) await "$(pid_of 1)" Z; exit 3 ;;
    1) : "$(pid_of 0) $(pid_of 2)"; kill -STOP $PPID && await $PPID T && kill -KILL $$ ;;
    2) await "$(pid_of 0)" Z; kill -CONT $PPID; exec sleep 1000 ;;
esac
"#;

#[test]
fn a_rank_that_a_signal_ended_comes_before_the_errors_that_follow() {
    let folder = Scratch::new("first-failure");
    let environment = format!("FOLDER={}", folder.path(""));
    let outcome = local(3, "1M", &[], &["env", &environment, "sh", "-c", ENDING]);
    assert_eq!(outcome.status, 137, "{outcome:?}");
    assert!(outcome.stderr.contains("rank 1 on ") && outcome.stderr.contains("SIGKILL"), "{outcome:?}");
}
