"""The modules of the workspace's crates, and their imports, for checks of files."""
import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# A root that is no target of cargo: the build script of the command compiles it.
OBJECT = ROOT / "launcher/preload/object/lib.rs"


def code_of(text):
    """Returns the text without comments, strings and the tests at its end."""
    text = re.split(r"^#\[cfg\((?:all\()?test\b[^\n]*\]\s*\n(?:#\[[^\n]*\]\s*\n)*mod \w+ \{", text, maxsplit=1, flags=re.M)[0]
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)


def use_paths(tree, prefix=()):
    """Yields the paths of a use tree such as `crate::a::{b, c::{self, d}}`."""
    tree = tree.strip()
    depth, parts, start = 0, [], 0
    for at, letter in enumerate(tree):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(tree[start:at])
            start = at + 1
    parts.append(tree[start:])
    for part in filter(None, map(str.strip, parts)):
        head, brace, rest = part.partition("{")
        names = tuple(name.strip() for name in re.split(r"\s+as\s+", head)[0].split("::") if name.strip())
        if brace:
            yield from use_paths(rest.rpartition("}")[0], prefix + names)
        else:
            yield prefix + names


def uses(code, names):
    """Returns true if the code, without its `use` and `mod` lines, has the last name of a path."""
    name = names[-1] if names[-1] != "self" else names[-2]
    return name != "*" and re.search(rf"(?<![\w.:]){name}\b", code) is not None


class Crate:
    """The modules of one crate, from its root file."""

    def __init__(self, root):
        self.files = {}
        self.reexports = {}
        self.add((), root)

    def add(self, path, file):
        self.files[path] = file
        folder = file.parent if not path or file.name == "mod.rs" else file.with_suffix("")
        text = code_of(file.read_text())
        for match in re.finditer(r"^\s*(?:pub(?:\([^)]*\))?\s+)?mod (\w+);", text, flags=re.M):
            name = match[1]
            for candidate in (folder / f"{name}.rs", folder / name / "mod.rs"):
                if candidate.exists():
                    self.add(path + (name,), candidate)
        for match in re.finditer(r"^\s*pub(?:\([^)]*\))?\s+use ([^;]+);", text, flags=re.M):
            for names in use_paths(match[1]):
                target = self.absolute(path, names)
                if target:
                    self.reexports[path + (names[-1],)] = target

    def absolute(self, at, names):
        """Returns the path from the crate's root, or None for another crate's."""
        if names[0] == "crate":
            return names[1:]
        if names[0] == "self":
            return at + names[1:]
        if names[0] == "super":
            while names and names[0] == "super":
                at, names = at[:-1], names[1:]
            return at + names
        if at + names[:1] in self.files:
            return at + names
        return None

    def owner(self, path):
        """Returns the module that defines the item at `path`, through re-exports."""
        for _ in range(8):
            for length in range(len(path), 0, -1):
                if path[:length] in self.reexports and path[:length] not in self.files:
                    path = self.reexports[path[:length]] + path[length:]
                    break
            else:
                break
        while path and path not in self.files:
            path = path[:-1]
        return path

    def imports(self):
        graph = {}
        for at, file in self.files.items():
            text = code_of(file.read_text())
            found = set()
            rest = re.sub(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:use [^;]+|mod \w+);", "", text, flags=re.M)
            for match in re.finditer(r"^\s*(pub(?:\([^)]*\))?\s+)?use ([^;]+);", text, flags=re.M):
                for names in use_paths(match[2]):
                    # A re-export is part of the module's interface. It is an import of its code
                    # only if the code uses the name.
                    if not match[1] or uses(rest, names):
                        found.add(self.absolute(at, names))
            rest = re.sub(r"pub\(in [\w:]+\)", "", rest)
            for match in re.finditer(r"(?<![\w:$])((?:crate|super|self)(?:::\w+)+)", rest):
                found.add(self.absolute(at, tuple(match[1].split("::"))))
            found.discard(None)
            for match in re.finditer(r"(?<![\w:.])(\w+)::\w", rest):
                if at + (match[1],) in self.files:
                    found.add(at + (match[1],))
            graph[at] = {self.owner(path) for path in found} - {at}
        return graph


def metadata():
    text = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"],
                          cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return json.loads(text)["packages"]


def roots(packages):
    """Yields the name and the root file of each target, and of the preloaded object."""
    for package in packages:
        for target in package["targets"]:
            if "custom-build" not in target["kind"]:
                is_lib = target["name"].replace("_", "-") == package["name"]
                name = package["name"] if is_lib else f"{package['name']} ({target['name']})"
                yield name, Path(target["src_path"])
    yield "hostbuf-preload (object)", OBJECT
