"""The rules of scripts/check-language. Each takes a Source, and yields (line, text) for a
violation.

The rules cover the part of the language guide in CONTRIBUTING.md that a program can check.
"""
import re
from pathlib import PurePath

MAX_COLUMNS = 100
MAX_PAGE_COLUMNS = 120
MAX_LINES = 600

# Words that begin a relative clause or refer to another item, where a noun or a verb is expected.
BANNED_OPENINGS = re.compile(r"(What|How|Whether|Where|Whoever|Who|Whose|Which|That|The same)\b")

# Words in -s that are no verbs in the third person, found at the beginning of the comments of
# functions.
NO_VERBS = set(
    """Always Arguments As Bits Buffers Bytes Channels Columns Connections Descriptors Devices
    Entries Errors Fields Files Hosts Its Keys Leases Members Numbers Options Others Pages Parts
    Perhaps Programs Ranges Ranks Regions Registrations Rows Sections Slots Statistics Statuses This
    Thus Times Towards Unless Us Users Variables Versions Windows Words Yes""".split()
)
# Verbs in the third person that do not end in a single -s.
VERBS = {"Passes", "Does", "Goes", "Is", "Has"}

# Names of Rust code that have a term of the field instead: the names, the folder they are banned
# in, the term. A word that has a proper meaning elsewhere is banned only where the project gave it
# a meaning of its own.
BANNED_NAMES = [
    ("letters?", "crates/", "connect_message"),
    ("mail", "", "datagram"),
    ("flights?", "", "in_flight"),
    ("Way", "crates/hostbuf-rdma/", "AddressHandle"),
    ("What", "", "Operation"),
    ("links", "crates/hostbuf-rdma/", "connections"),
    ("receives", "crates/hostbuf-rdma/", "shared_receive_queue"),
    ("card", "crates/hostbuf-rdma/", "endpoint_info"),
    ("boxes", "", "ring"),
    ("places", "crates/hostbuf-rdma/", "slots"),
    ("choice", "crates/hostbuf-rdma/", "device_selection"),
    ("told", "crates/hostbuf-rdma/", "signaled"),
    ("words", "crates/hostbuf-register/src/cache/", "lease_counts"),
    ("guess(es)?", "", "hints"),
    ("ending", "crates/hostbuf-register/src/cache/", "deregister"),
    ("Filling|Ending|Lost", "crates/hostbuf-register/src/cache/", "Registering, Deregistering, Leaked"),
    ("[Pp]ulse", "", "ChangeSequence"),
    ("strays?", "crates/hostbuf-register/", "residual"),
    ("doubt|trust", "crates/hostbuf-register/", "mark_unsound, mark_sound"),
    ("Lent|lent", "", "ScopedArena"),
    ("Ground", "", "FillFrom"),
    ("Lineage|lineage", "", "ForkGuard, fork_guard"),
    ("moods?", "", "failing_device"),
    ("restless", "", "busy_memory"),
    ("letting_go", "", "monitor_shutdown"),
    ("HOSTBUF_NODE", "", "HOSTBUF_NUMA_NODE"),
]
# File names, likewise. As names in code some of them are proper words.
BANNED_FILES = [
    ("completions", "crates/hostbuf-rdma/", "completion_queue"),
    ("ends", "crates/hostbuf-rdma/", "channel_state"),
    ("pair", "crates/hostbuf-rdma/", "queue_pair"),
    ("owned", "", "own_ranges"),
    ("foreign", "", "ffi_fill"),
    ("early", "src/", "preregistered"),
    ("doubt", "tests/", "unsound_monitor"),
    ("kept", "tests/", "keep"),
    ("keys", "tests/", "hit_key"),
    ("windows", "tests/", "growing_ranges"),
]
BANNED_NAMES, BANNED_FILES = (
    [(re.compile(rf"(?:{names})\Z"), folder, term) for names, folder, term in banned] for banned in (BANNED_NAMES, BANNED_FILES)
)

# Words of prose that have a term of the field instead.
PRIVATE_WORDS = [
    (re.compile(r"\bflights\b", re.I), "in-flight operations"),
    (re.compile(r"\bpulses?\b", re.I), "change sequence"),
    (re.compile(r"\blineage\b", re.I), "fork guard"),
    (re.compile(r"\b(?:lent|lends?|lending)\b", re.I), "scoped, or the verb of the interface"),
    (re.compile(r"\bguess(?:es)?\b", re.I), "hint"),
    (re.compile(r"\bmoods?\b", re.I), "the behaviour that is tested"),
    (re.compile(r"\brestless\b", re.I), "busy"),
    (re.compile(r"\bletting go\b", re.I), "shutdown"),
    (re.compile(r"(?<!\w)cuda\?"), "cuda:optional"),
    (re.compile(r"\bHOSTBUF_NODE\b"), "HOSTBUF_NUMA_NODE"),
]

# A sentence whose subject is a relative clause, or that leaves its subject out. Questions and
# headings may.
CLAUSE_AS_NOUN = re.compile(r"(?:^|[.:;] )(?:What|Who|Whoever)\s+[a-z][^.?!]*(?:[.!]|$)|(?:^|[.:] )The same(?:[;,.:]|$)")

# Type names that may stand for more than one type, each with the reason.
SHARED_TYPES = {
    "Error": "each layer has its own, with From",
    "Result": "the alias of each layer's Error",
}
# Classes of the bindings that wrap the library's type of the same name: one word for one thing.
WRAPPING_TYPES = {"python/": {"Arena", "Device", "Lease", "Registration"}, "bindings/": set()}


class Source:
    """A file with what the rules need: its comments, the names in its code, its documented
    items."""

    def __init__(self, path, text):
        self.path = path
        self.lines = text.split("\n")
        self.language = language_of(path, self.lines[0])
        self.generated = any("Written by cbindgen" in line for line in self.lines[:20])
        self.text = text
        # Pairs of line and text; and of line and name.
        self.comments, self.code = [], text
        if self.language in ("rust", "c"):
            self.comments, self.code = split_c_like(text)
        elif self.language in ("shell", "python", "fortran"):
            self.comments = split_by_lines(self.lines, self.language)


def language_of(path, first):
    """Returns the language of a file: by its ending, or by its first line. None for others."""
    suffix = PurePath(path).suffix
    known = {".rs": "rust", ".h": "c", ".hpp": "c", ".c": "c", ".cpp": "c", ".f90": "fortran", ".py": "python", ".md": "markdown"}
    if suffix in known:
        return known[suffix]
    if path.startswith("scripts/") or path.startswith(".ci/"):
        if "python" in first:
            return "python"
        if "bash" in first or path == "scripts/lib/say":
            return "shell"
    return None


TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>\bb?r(?P<hashes>\#*)".*?"(?P=hashes)|\bc?b?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"|'(?:\\[^\n]{1,8}|[^'\\\n])')""",
    re.S | re.X,
)


def split_c_like(text):
    """Returns the comments as (line, text), and the code with blanks for comments and strings."""
    comments, code, at, line = [], [], 0, 1
    for match in TOKENS.finditer(text):
        code.append(text[at : match.start()])
        line += text.count("\n", at, match.start())
        token = match.group()
        if match.group("comment"):
            for number, part in enumerate(token.split("\n")):
                comments.append((line + number, part))
        line += token.count("\n")
        code.append(re.sub(r"[^\n]", " ", token))
        at = match.end()
    code.append(text[at:])
    return comments, "".join(code)


def split_by_lines(lines, language):
    """Returns the lines that are comments, as (line, text)."""
    mark = "!" if language == "fortran" else "#"
    comments = [(number, line) for number, line in enumerate(lines, 1) if line.lstrip().startswith(mark)]
    if language == "python":
        # Of the strings in triple quotes, those that begin a line are documentation.
        inside, is_documentation = False, False
        for number, line in enumerate(lines, 1):
            quotes = line.count('"""')
            if quotes and not inside:
                is_documentation = line.lstrip().startswith('"""')
            if is_documentation and (inside or quotes):
                comments.append((number, line))
            inside ^= quotes % 2 == 1
        comments.sort()
    return comments


# --- Documented items
# -------------------------------------------------------------------------------------------------


def documented(source):
    """Yields (line, first line of the comment, code below it) for each documented item."""
    if source.language == "rust":
        yield from documented_rust(source)
    elif source.language == "shell":
        yield from documented_by_lines(source.lines, "# ", re.compile(r"\w+ *\(\) *[{(]"))
    elif source.language == "fortran":
        item = re.compile(r"(subroutine|function|type|interface|module|[\w() ,=*]*\bfunction)\b", re.I)
        yield from documented_by_lines(source.lines, "! ", item)
    elif source.language == "c":
        yield from documented_by_lines(source.lines, "// ", re.compile(r"\S"))
        for number, line in enumerate(source.lines, 1):
            match = re.match(r"\s*/\*\*? +(\S.*)", line)
            if match:
                yield number, match.group(1), ""
    elif source.language == "python":
        for number, line in enumerate(source.lines, 1):
            match = re.match(r'\s*[rf]?"""(\S.*)', line)
            if match:
                above = next((text.strip() for text in reversed(source.lines[: number - 1]) if text.strip()), "")
                is_function = above.endswith(":") and signature_above(source.lines, number)
                yield number, match.group(1), "fn" if is_function else ""


def signature_above(lines, number):
    """Returns whether the docstring at line `number` belongs to a function."""
    for text in reversed(lines[: number - 1]):
        word = text.strip()
        if word.startswith(("def ", "async def ")):
            return True
        if not word or word.startswith(("class ", '"""')):
            return False
    return False


def documented_rust(source):
    mark, first, start, depth, is_test = None, None, 0, 0, False
    for number, (line, code) in enumerate(zip(source.lines, source.code.split("\n")), 1):
        bare, code = line.strip(), code.strip()
        if bare.startswith("//!") or (bare.startswith("///") and not bare.startswith("////")):
            if mark != bare[:3]:
                mark, first, start, depth, is_test = bare[:3], bare[3:].strip(), number, 0, False
                if mark == "//!":
                    yield start, first, ""
            continue
        if mark == "///":
            # Attributes stand between the comment and the item, some on several lines.
            if depth or code.startswith("#["):
                is_test |= bool(re.match(r"#\[(?:\w+::)*test\b", code))
                depth += code.count("[") - code.count("]")
                if depth or code.endswith("]"):
                    continue
            if not code:
                continue
            # The comment of a test says what must hold: a whole sentence.
            yield start, first, "" if is_test else code
        mark = None


def documented_by_lines(lines, mark, item):
    first, start = None, 0
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if bare.startswith(mark) and not bare.startswith("# shellcheck"):
            if first is None:
                first, start = bare[len(mark) :].strip(), number
            continue
        if first is not None and start > 2 and item.match(bare):
            yield start, first, "fn" if re.match(r"\w+ *\(\) *[{(]", bare) else ""
        first = None


# The code of an item has blanks in place of strings, such as the one behind `extern`.
FUNCTION = re.compile(r"(?:pub(?:\([^)]*\))? |default |const |async |unsafe |safe |extern +)*fn\b")


def opening(source):
    """Finds comments of items that begin with a relative clause or refer to another item."""
    if source.generated:
        return
    for line, first, _ in documented(source):
        if BANNED_OPENINGS.match(first):
            yield line, first


def verb(source):
    """Finds comments of functions that do not begin with a verb in the third person."""
    if source.generated:
        return
    for line, first, item in documented(source):
        if not FUNCTION.match(item) or BANNED_OPENINGS.match(first):
            continue
        word = re.match(r"[`*_[]*([A-Za-z]+)", first)
        word = word.group(1) if word else first
        if word in VERBS or first.startswith("# "):
            continue
        if not re.fullmatch(r"[A-Z][a-z-]*[^sW]s", word) or word in NO_VERBS:
            yield line, first


# Types, constants and fields of Rust. A field or an alias that is a function has the comment of
# one.
NOUN_ITEM = re.compile(
    r"(?:pub(?:\([^)]*\))? )?(?:(?:unsafe )?(?:struct|enum|union|trait|type|const(?! (?:unsafe )?fn\b)|static)\b|[a-z_]\w*: )"
)
FUNCTION_TYPE = re.compile(r"[:=<] *(?:unsafe )?(?:extern +)?fn\(|: Option<$")
# The openings of a clause, or of a participle that leaves the noun out ("Held while ...").
NO_NOUN = re.compile(
    r"(?:If|When|While|As|In|By)\b|Not 0:|"
    r"(?:Called|Counted|Held|Kept|Locked|Made|Read|Set|Signalled|Used|Written)\b[^.:]*? "
    r"(?:while|when|if|during|by|before|after)\b"
)
# Plural nouns with which the comment of an item may begin.
PLURALS = NO_VERBS | set(
    """Changes Delays Deregistrations Events Figures Flags Mappings Messages Participants Requests
    Writers""".split()
)


def noun(source):
    """Finds comments of types, constants and fields that begin with a verb or leave the noun
    out."""
    if source.language != "rust":
        return
    for line, first, item in documented(source):
        if not NOUN_ITEM.match(item) or FUNCTION_TYPE.search(item) or BANNED_OPENINGS.match(first):
            continue
        word = re.match(r"[A-Za-z-]*", first).group()
        is_verb = word in VERBS or re.fullmatch(r"[A-Z][a-z-]*[^su]s", word) and word not in PLURALS
        if is_verb or NO_NOUN.match(first):
            yield line, first


# --- Lines
# ------------------------------------------------------------------------------------------------------------


def comment_width(source):
    """Finds comments of more than 100 columns, except rows of tables and long addresses."""
    if source.generated:
        return
    for line, text in source.comments:
        whole = source.lines[line - 1]
        if re.match(r"\s*//[/!] \|", whole):
            continue
        if len(whole) > MAX_COLUMNS and whole.lstrip().startswith(text.lstrip()[:3]):
            longest = max(text.split(), key=len, default="")
            if len(longest) < MAX_COLUMNS // 2:
                yield line, f"{len(whole)} columns"


def page_width(source):
    """Finds lines of Markdown with more than 120 columns, except rows of tables and code."""
    if source.language != "markdown":
        return
    code = False
    for line, text in enumerate(source.lines, 1):
        if text.lstrip().startswith("```"):
            code = not code
        elif len(text) > MAX_PAGE_COLUMNS and not code and not text.startswith(("|", "    ")):
            yield line, f"{len(text)} columns"


def file_length(source):
    """Finds the lines beyond the 600th."""
    count = len(source.lines) - (source.lines[-1] == "")
    if source.generated or source.path == "docs/figures.md":
        return
    for line in range(MAX_LINES + 1, count + 1):
        yield line, f"line {line} of a file that may have {MAX_LINES}"


# --- Words
# ------------------------------------------------------------------------------------------------------------


def banned_name(source):
    """Finds names of code and files that have a term of the field instead."""
    if source.language != "rust":
        return
    stem = PurePath(source.path).stem
    for names, folder, term in BANNED_NAMES + BANNED_FILES:
        if source.path.startswith(folder) and names.match(stem):
            yield 1, f"the file name {stem}: {term}"
    for number, line in enumerate(source.code.split("\n"), 1):
        for name in re.findall(r"[A-Za-z_]\w*", line):
            for names, folder, term in BANNED_NAMES:
                if names.match(name) and source.path.startswith(folder):
                    yield number, f"{name}: {term}"


def prose(source):
    """Yields (line, text) for each line of prose: of comments, or of a page outside of its code."""
    if source.language == "markdown":
        fenced = False
        for number, line in enumerate(source.lines, 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced and not line.startswith("#"):
                yield number, re.sub(r"`[^`]*`", "`", line).lstrip("> *-|0123456789.")
    else:
        for number, text in source.comments:
            yield number, re.sub(r"`[^`]*`", "`", text.strip().lstrip("/!*#\" "))


# The checker itself names the words that it looks for.
EXEMPT_PROSE = ("scripts/lib/language_", "scripts/check-language")


def private_word(source):
    """Finds words of prose that have a term of the field instead."""
    if source.path.startswith(EXEMPT_PROSE) or source.generated:
        return
    for line, text in prose(source):
        for words, term in PRIVATE_WORDS:
            match = words.search(text)
            if match:
                yield line, f"{match.group()}: {term}"


def clause(source):
    """Finds sentences whose subject is a relative clause."""
    if source.path.startswith(EXEMPT_PROSE) or source.generated:
        return
    openings = {line for line, _ in opening(source)}
    for line, text in prose(source):
        match = CLAUSE_AS_NOUN.search(text)
        if match and line not in openings:
            yield line, text


def getter(source):
    """Finds accessors with get_ in front of their names."""
    if source.language != "rust" or source.path.startswith(("python/", "tests/", "bindings/")):
        return
    for number, line in enumerate(source.code.split("\n"), 1):
        match = re.search(r"\bfn (get_\w+)", line)
        # The operations of a cache are no accessors; some names are those of the standard library.
        if match and not re.match(r"get_(many|timeout|waiting|mut|ref|unchecked)(_|$)", match.group(1)):
            yield number, match.group(1)


# --- Types
# ------------------------------------------------------------------------------------------------------------

TYPE = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?(?:unsafe )?(struct|enum|union|trait|type) (\w+)")


def types_of(source):
    """Returns the types that the file defines outside of its tests, as (line, name)."""
    found, test_indent, attributes = [], None, []
    for number, line in enumerate(source.code.split("\n"), 1):
        bare, indent = line.strip(), len(line) - len(line.lstrip())
        if test_indent is not None:
            if bare.startswith("}") and indent == test_indent:
                test_indent = None
            continue
        if re.match(r"#\[cfg\((?!not).*\btest\b", bare):
            attributes.append("test")
        elif bare.startswith("#["):
            attributes.append("other")
        elif bare:
            match = TYPE.match(line)
            if "test" in attributes:
                if bare.endswith("{"):
                    test_indent = indent
            elif match and (match.group(2) != "type" or not match.group(1)):
                found.append((number, match.group(3)))
            attributes = []
    return found


def test_modules(sources):
    """Returns the paths of the files that are modules of tests: `#[cfg(test)] mod name;`."""
    paths = set()
    for source in sources:
        if source.language != "rust":
            continue
        place = PurePath(source.path)
        folder = place.parent if place.stem in ("mod", "lib", "main") else place.parent / place.stem
        for match in re.finditer(r"#\[cfg\((?!not)[^\n]*\btest\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))? )?mod (\w+);", source.text):
            paths |= {str(folder / f"{match.group(1)}.rs"), str(folder / match.group(1) / "mod.rs")}
    return paths


# Complete programs, each of which is read alone, as a user copies it: a type of one may have the
# name of a type of another or of the library. Each is a file or a folder right below these folders.
STAND_ALONE = ("examples/",)


def program_of(path):
    """Returns the file or folder of the program that `path` belongs to if the program stands alone,
    or None."""
    folder = next((folder for folder in STAND_ALONE if path.startswith(folder)), None)
    return folder and folder + path[len(folder) :].split("/")[0]


def types_of_one_name(sources):
    """Finds types of one name, and yields (source, line, text) for each."""
    defined, tests = {}, test_modules(sources)
    for source in sources:
        if source.language != "rust" or source.path in tests:
            continue
        if PurePath(source.path).stem == "tests":
            continue
        wrapping = next((names for folder, names in WRAPPING_TYPES.items() if source.path.startswith(folder)), set())
        for line, name in types_of(source):
            if name in wrapping:
                continue
            defined.setdefault((program_of(source.path), name), []).append((source, line))
    for (_, name), places in defined.items():
        # Two in one file are the variants of a target or a feature.
        files = {source.path for source, _ in places}
        if len(files) < 2 or name in SHARED_TYPES:
            continue
        for source, line in places:
            other = next(path for path in sorted(files) if path != source.path)
            yield source, line, f"{name} is also a type in {other}"


RULES = {
    "opening": opening,
    "verb": verb,
    "noun": noun,
    "comment-width": comment_width,
    "page-width": page_width,
    "file-length": file_length,
    "banned-name": banned_name,
    "private-word": private_word,
    "clause-as-noun": clause,
    "getter": getter,
}
RULE_OF_TYPES = "type-twice"


def violations(sources):
    """Returns all violations as (path, line, rule, text), in order."""
    found = []
    for source in sources:
        for rule, check in RULES.items():
            found += [(source.path, line, rule, text) for line, text in check(source)]
    found += [(source.path, line, RULE_OF_TYPES, text) for source, line, text in types_of_one_name(sources)]
    return sorted(found)
