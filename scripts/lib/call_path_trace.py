"""Records call paths of a program. `scripts/call-paths` runs it inside gdb:

  gdb -nx -batch -ex 'python paths = "NAME BEGIN END;..."; to = "FILE"' -x THIS --args PROGRAM...

The paths are in the order in which the program takes them. BEGIN and END are functions. From a call
of BEGIN on, or from the start of the program if BEGIN is `-`, the first call of END by the same
thread is recorded: the files of the functions on the stack, outermost first. Appends a line
`call-path NAME FILE...` to the file `to` for each path; and for each path with BEGIN `entered NAME
FILE...`, the files of all functions that the thread has called between the two. With a
variable `out` the program's standard output is that descriptor, so that it does not mix with gdb's.

Only files of this project count. A function that the compiler has inlined is on the stack, too, but
is not a call of its own.
"""
import os
import re
import subprocess
from pathlib import Path

import gdb

ROOT = os.getcwd() + "/"
FOLDERS = ["crates", "launcher", "src"]


def own_file(name):
    """Returns the path of a file of this project from its root, or None for any other file."""
    name = name.removeprefix(ROOT)
    return name if name.split("/")[0] in FOLDERS else None


def file_of(frame):
    """Returns the project's file of a frame's function, or None."""
    # The line of an expanded macro may be in another file than the function. An inlined function
    # has no other file than that of its line.
    function = frame.function() if frame.type() != gdb.INLINE_FRAME else None
    symtab = function.symtab if function else frame.find_sal().symtab
    return own_file(symtab.filename) if symtab else None


def stack():
    """Returns the project's files on the stack of the selected thread, outermost first."""
    files, frame = [], gdb.newest_frame()
    while frame is not None:
        files.append(file_of(frame))
        frame = frame.older()
    return [file for file in reversed(files) if file]


def tell(kind, name, files):
    # A single write, on a line of its own, since other processes may share the output.
    line = f"\n{kind} {name} {' '.join(dict.fromkeys(files))}\n"
    out = os.open(to, os.O_WRONLY | os.O_APPEND)  # noqa: F821, which gdb's command line has set
    os.write(out, line.encode())
    os.close(out)


def places(pattern):
    """Returns the places FILE:LINE of the project's functions whose names match."""
    file, found = None, {}
    for line in gdb.execute(f"info functions -n {pattern}", to_string=True).splitlines():
        if line.startswith("File "):
            file = own_file(line[5:].rstrip(":"))
        elif file and (number := re.match(r"(\d+):", line)):
            found[f"{file}:{number[1]}"] = None
    return list(found)


def breakpoints(function):
    """Returns breakpoints at a function, of which generic code may have several instances."""
    try:
        gdb.decode_line(function)
        found = []
    except gdb.error:
        # A generic function, which gdb does not find by its name; or one of a library that is not
        # loaded yet.
        found = places(rf"^{function}\(<.*\)*$")
    return [gdb.Breakpoint(place, internal=True) for place in found or [function]]


# The files of the functions that were called, in the order of the calls.
entered = []


class Entry(gdb.Breakpoint):
    """A breakpoint at the entry of a function that records the function's file and goes on."""

    def stop(self):
        frame = gdb.newest_frame()
        files = [file_of(frame)]
        # The caller may be inlined into other functions.
        while (frame := frame.older()) is not None:
            files.append(file_of(frame))
            if frame.type() != gdb.INLINE_FRAME:
                break
        entered.extend(file for file in reversed(files) if file)
        return False


class InlinedEntry(gdb.Breakpoint):
    """A breakpoint at all copies of an inlined function, which records its file and goes on."""

    def __init__(self, file, line):
        super().__init__(f"{file}:{line}", internal=True)
        self.file = file

    def stop(self):
        entered.append(self.file)
        return False


def inlined():
    """Yields the file and the line of each function that is inlined in debug builds, too."""
    function = r"#\[inline\(always\)\]\n(?:\s*(?:#\[|//).*\n)*\s*(?:pub(?:\([\w: ]*\))? )?(?:const )?(?:unsafe )?(?=fn )"
    for path in [path for folder in FOLDERS for path in sorted(Path(folder).glob("**/*.rs"))]:
        text = path.read_text()
        for found in re.finditer(function, text):
            yield str(path), text.count("\n", 0, found.end()) + 1


def addresses():
    """Returns the addresses of the project's functions. nm finds them much faster than gdb does."""
    program = gdb.current_progspace().filename
    with open(f"/proc/{gdb.selected_inferior().pid}/maps") as maps:
        base = next(int(line.partition("-")[0], 16) for line in maps if line.rstrip().endswith(program))
    lines = subprocess.run(["nm", "-C", "--defined-only", program], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^(\w+) [tTwW] <?&?(?:mut )?hostbuf", lines, flags=re.M)
    return {base + int(address, 16) for address in found}


# Breakpoints at all functions of the project, which all paths share.
entries = []


def files_of(function):
    """Returns the project's file of a function that is not generic, if it has one."""
    try:
        places = gdb.decode_line(function)[1] or ()
    except gdb.error:
        return []
    return [file for place in places[:1] if place.symtab and (file := own_file(place.symtab.filename))]


def proceed():
    """Continues the program, and returns whether it has stopped at a breakpoint."""
    gdb.execute("continue", to_string=True)
    return gdb.selected_inferior().pid != 0


def record(name, begin, end):
    first = breakpoints(begin) if begin != "-" else []
    if first:
        if not proceed():
            return
        if not entries:
            entries.extend([Entry(f"*{address:#x}", internal=True) for address in addresses()])
            entries.extend([InlinedEntry(*place) for place in inlined()])
    last = breakpoints(end)
    if first:
        entered.clear()
        for breakpoint in [*last, *entries]:
            breakpoint.thread = gdb.selected_thread().num
            breakpoint.enabled = True
    if proceed():
        # At an inlined function gdb stops in its caller.
        tell("call-path", name, stack() + files_of(end))
        if first:
            tell("entered", name, entered)
    for breakpoint in entries:
        breakpoint.enabled = False
    for breakpoint in [*first, *last]:
        breakpoint.delete()


for setting in ["pagination off", "confirm off", "debuginfod enabled off", "breakpoint pending on", "breakpoint always-inserted on",
                "logging file /dev/null", "logging redirect on", "logging enabled on"]:
    gdb.execute(f"set {setting}", to_string=True)
arguments = gdb.execute("show args", to_string=True).partition('"')[2].rpartition('"')[0]
redirection = f" >&{out}" if "out" in globals() else ""  # noqa: F821
gdb.execute(f"starti {arguments}{redirection}", to_string=True)
for path in paths.split(";"):  # noqa: F821, which gdb's command line has set
    if gdb.selected_inferior().pid:
        record(*path.split())
if gdb.selected_inferior().pid:
    gdb.execute("continue")
