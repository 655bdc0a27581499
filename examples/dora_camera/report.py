"""Prints the reports of dataflows as a table, from the logs of `dora run`.

report.py FRAMES LOG...

Exit status: 0 if the pool has lost no frame, and no frame was torn.
"""

import json
import sys

COLUMNS = ("transport", "device", "frames", "lost", "torn", "in_hand_p50", "in_hand_p99", "used_p50", "used_p99")


def _text(value):
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main(frames, logs):
    reports = []
    for log in logs:
        with open(log, errors="replace") as lines:
            found = [line.partition("REPORT ")[2] for line in lines if "REPORT {" in line]
        if not found:
            sys.exit(f"report.py: the dataflow of {log} has ended without a report: see there")
        reports.append(json.loads(found[-1][: found[-1].rindex("}") + 1]))
    rows = [COLUMNS, *([_text(report[column]) for column in COLUMNS] for report in reports)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(field.rjust(width) for field, width in zip(row, widths)))
    print("times in ms from a finished frame at the camera: to the frame in the viewer's hand, and to its end of use")
    by_name = {report["transport"]: report for report in reports}
    for name, report in by_name.items():
        if report["torn"]:
            sys.exit(f"report.py: {report['torn']} frames of {name} were torn")
        # The others may lose some: dora drops inputs of a slow node.
        if name in ("pool", "rust") and (report["lost"] or report["frames"] != frames):
            sys.exit(f"report.py: {report['lost']} of {frames} frames of {name} are lost, {report['gone']} came too late")


main(int(sys.argv[1]), sys.argv[2:])
