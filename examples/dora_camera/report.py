"""Prints the reports of dataflows as a table, from the logs of `dora run`.

report.py [--bars] [--lossy] FRAMES LOG...

Exit status: 0 if no frame was torn, the pool has lost no frame and, with --bars, the ratios of the
times of dora to those of the pool meet their bars. With --lossy the pool may lose frames, but not
all: dora drops inputs of a node that a busy machine slows down.
"""

import json
import sys

COLUMNS = (
    "transport", "device", "access", "frames", "lost", "torn",
    "in_hand_p50", "in_hand_p99", "ready_p50", "ready_p99", "used_p50", "used_p99",
)  # fmt: skip


def _text(value):
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# The least ratios of the times of dora's transports to those of the pool.
BARS = (
    ("plain", "dora with its defaults", "in_hand_p50", 5),
    ("tuned", "dora with enough shared memory", "in_hand_p50", 1),
)
GPU_BARS = (
    ("adopted", "dora's shared memory, adopted", "ready_p50", 0.95),
    ("plain", "dora with its defaults", "ready_p50", 1.8),
    ("tuned", "dora with enough shared memory", "ready_p50", 1.8),
    ("tensor-pool", "dora's tensor pool", "ready_p50", 1.8),
)


def compare(by_name):
    """Prints the ratios of the times, and returns whether they meet their bars."""
    all_met = True
    has_gpu = by_name.get("pool", {}).get("device") == "GPU"
    for name, text, column, bar in BARS + (GPU_BARS if has_gpu else ()):
        if all(by_name.get(known, {}).get("frames") for known in ("pool", name)):
            ratio = by_name[name][column] / by_name["pool"][column]
            all_met &= ratio >= bar
            what = "in hand" if column == "in_hand_p50" else "on the GPU"
            print(f"frame {what}, {text} : pool  {ratio:.2f}  >= {bar} {'met' if ratio >= bar else 'MISSED'}")
    return all_met


def main(frames, logs, has_bars, is_lossy):
    reports = []
    for log in logs:
        with open(log, errors="replace") as lines:
            found = [line.partition("REPORT ")[2] for line in lines if "REPORT {" in line]
        if not found:
            sys.exit(f"report.py: the dataflow of {log} has ended without a report: see there")
        reports.append(json.loads(found[-1][: found[-1].rindex("}") + 1]))
    rows = [COLUMNS, *([_text(report.get(column, "-")) for column in COLUMNS] for report in reports)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(field.rjust(width) for field, width in zip(row, widths)))
    print("times in ms from a finished frame at the camera: to the frame in the viewer's hand, to the frame ready for")
    print("use on the GPU or the CPU, and to its end of use")
    by_name = {report["transport"]: report for report in reports}
    meets_bars = compare(by_name)
    for name, report in by_name.items():
        if report["torn"]:
            sys.exit(f"report.py: {report['torn']} frames of {name} were torn")
        if not report["frames"]:
            sys.exit(f"report.py: no frame of {name} has arrived")
        # The others may lose some: dora drops inputs of a slow node.
        if name in ("pool", "rust") and not is_lossy and (report["lost"] or report["frames"] != frames):
            sys.exit(f"report.py: {report['lost']} of {frames} frames of {name} are lost, {report['gone']} came too late")
    adopted = by_name.get("adopted", {})
    if adopted and adopted["access"] != "direct":
        print(f"the frames of dora were not adopted: {adopted['why']}")
        if adopted["lockable"]:
            sys.exit("report.py: dora's frames in shared memory must be direct")
    if has_bars and not meets_bars:
        sys.exit("report.py: a bar is missed")


options = [argument for argument in sys.argv[1:] if argument.startswith("--")]
arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
main(int(arguments[0]), arguments[1:], "--bars" in options, "--lossy" in options)
