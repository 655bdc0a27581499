"""Samples for the rules of scripts/check-language, and the self-test that runs them."""
import language_rules

# (rule, path, text). Each line that violates the rule ends with "<<", which is removed before the
# rule sees it; a sample without one must pass.
SAMPLES = [
    ("opening", "src/a.rs", "/// What a rank holds. <<\npub struct Share;\n\n/// A rank's share.\npub struct Part;\n"),
    ("opening", "src/a.rs", "//! How a buffer is filled. <<\n\n/// Which host this is. <<\nconst HOST: u32 = 0;\n"),
    ("opening", "src/a.rs", "    /// Whether it is frozen. <<\n    frozen: bool,\n    /// The same, for writing. <<\n    writes: bool,\n"),
    ("opening", "src/a.rs", "// What a plain comment says is not the rule's concern.\nlet x = 1;\n"),
    ("opening", "src/a.rs", "/// Whatever the kernel returned.\nstruct Answer;\n/// Whole pages.\nstruct Pages;\n"),
    ("opening", "scripts/a", "#!/usr/bin/env bash\nset -e\n\n# Where the hosts are. <<\nhosts() {\n    true\n}\n"),
    ("opening", "python/a.py", 'def size(self):\n    """How many bytes there are.""" <<\n'),
    ("opening", "bindings/a.f90", "use b\nuse c\n! What went wrong. <<\nsubroutine message()\n"),
    ("opening", "include/a.h", "int x;\nint y;\n/* How a call ended. */ <<\nint status;\n"),
    ("verb", "src/a.rs", "/// The number of free slots. <<\npub fn free() -> usize {\n/// Returns the number of slots.\nfn slots() {\n"),
    ("verb", "src/a.rs", "/// Address of the buffer. <<\n#[must_use]\npub const unsafe fn address() {\n"),
    ("verb", "src/a.rs", '/// Bytes a second. <<\n#[cfg(\n    feature = "cuda",\n)]\npub(crate) async fn rate() {\n'),
    ("verb", "src/a.rs", "/// A rank that ends is noticed.\n#[test]\nfn a_rank_ends() {\n/// The address. <<\nfn address() {\n"),
    ("verb", "src/a.rs", "/// [Registers](register) a range.\nfn a() {\n/// Passes a descriptor.\nfn b() {\n/// # Safety\nunsafe fn c() {\n"),
    ("verb", "src/a.rs", "/// The address.\naddress: fn() -> usize,\n/// A slot.\nstruct Slot;\n"),
    ("verb", "scripts/a", "#!/usr/bin/env bash\nset -e\n# Wait for a line. <<\nwait() {\n# Prints a line.\nprint() {\n"),
    ("verb", "python/a.py", 'def a(b):\n    """The address.""" <<\n\nclass C:\n    """A buffer."""\n\ndef d():\n    """Returns it."""\n'),
    ("verb", "src/a.rs", '/// The end. <<\npub extern "C" fn end() {\n/// Ends it.\npub unsafe extern "C" fn stop() {\n'),
    ("noun", "src/a.rs", "/// Held while it is read. <<\nstatic LOCK: Mutex<()> = 1;\n/// Set if it is kept. <<\npub(crate) const KEPT: u64 = 1;\n"),
    ("noun", "src/a.rs", "/// Moves bytes. <<\npub unsafe trait Carrier {\n/// A carrier.\nstruct A;\n/// Moves bytes.\npub const fn move_bytes() {\n"),
    ("noun", "src/a.rs", "/// If true, it sleeps. <<\n    pub sleeps: bool,\n/// True if it sleeps.\n    sleeps: bool,\n/// Whole pages.\n    pages: u8,\n"),
    ("noun", "src/a.rs", "/// Returns the rank.\n    rank: extern \"C\" fn(),\n/// Ranks of the host.\n    ranks: u8,\n/// There is none.\n    None,\n"),
    ("comment-width", "src/a.rs", f"// {'ab ' * 33}<<\n// {'ab ' * 32}\nlet a = {'1 + ' * 40}1;\n"),
    ("comment-width", "src/a.rs", f"    /// {'ab ' * 32}<<\n    let text = \"// {'ab ' * 40}\";\n"),
    ("comment-width", "src/a.rs", f"//! | {'ab ' * 32}|\n// | {'ab ' * 32}|<<\n"),
    ("comment-width", "scripts/a", f"#!/usr/bin/env bash\n# {'ab ' * 40}<<\necho {'ab ' * 40}\n"),
    ("comment-width", "python/a.py", f'def a():\n    """Returns {"ab " * 40}""" <<\n    return "{"ab " * 40}"\n'),
    ("comment-width", "python/a.py", f'A = """\\\n{"ab " * 40}\n"""\nb = {"1 + " * 40}1\n"""One.\n{"ab " * 40}<<\n"""\n'),
    ("comment-width", "bindings/a.f90", f"! {'ab ' * 40}<<\n"),
    ("page-width", "docs/a.md", f"{'ab ' * 39}\n\n{'ab ' * 41}<<\n\n| {'ab ' * 41}|\n\n```\n{'ab ' * 41}\n```\n"),
    ("comment-width", "include/a.h", f"/* one\n * {'ab ' * 40}<<\n */\n// https://example.org/{'a' * 100}\n"),
    ("file-length", "src/a.rs", "a\n" * 600 + "a<<\na<<\n"),
    ("file-length", "src/a.rs", "a\n" * 600),
    ("banned-name", "src/a.rs", 'let mail = 1; <<\n// mail\nlet a = "mail";\nlet email = b\'"\'; let flights = 2; <<\n'),
    ("banned-name", "crates/hostbuf-register/src/cache/a.rs", "fn words() { <<\nenum S { Lost } <<\n"),
    ("banned-name", "launcher/a.rs", "fn words() {\nfn f<'a>(letter: &'a str, ending: &'a str) {\n"),
    ("banned-name", "crates/hostbuf-rdma/src/pair.rs", "//! Queue pairs. <<\nfn pair() {}\n"),
    ("banned-name", "src/a.rs", 'let x = r#"let mail = "1";"#;\n/* let mail;\n let mail; */\nlet mail = \'m\'; <<\n'),
    ("private-word", "docs/a.md", "A guess says which slot it is. <<\n\n```\nguess\n```\nA `guess` in code.\n"),
    ("private-word", "src/a.rs", "// It is lent to the closure. <<\nlet lent = 1;\n"),
    ("clause-as-noun", "README.md", "What is sent stays. <<\nWho waits is woken. <<\n# What ends with the job\nWhat is it?\n"),
    ("clause-as-noun", "src/a.rs", "// A fact. Who comes later waits. <<\n// The same; for writing. <<\n// Nobody knows who waits.\n"),
    ("clause-as-noun", "src/a.rs", "/// What a rank holds.\nstruct Share;\n"),
    ("getter", "src/a.rs", "pub fn get_size(&self) { <<\npub fn get_many(&self) {\npub fn size(&self) {\n"),
]

# (files, names of types that must be found twice).
TYPE_SAMPLES = [
    ({"src/a.rs": "struct State;\n", "crates/b/src/lib.rs": "pub(crate) enum State {}\n"}, {"State"}),
    ({"src/a.rs": "pub enum Error {}\n", "src/b.rs": "pub struct Error;\n"}, set()),
    ({"src/a.rs": "struct Line;\n", "src/b.rs": "#[cfg(test)]\nmod tests {\n    struct Line;\n}\n"}, set()),
    ({"src/a.rs": "struct Line;\n", "src/b.rs": "#[cfg(test)]\nmod tests {\n}\nstruct Line;\n"}, {"Line"}),
    ({"src/a.rs": "struct Line;\n", "src/b.rs": "#[cfg(not(test))]\nstruct Line;\n"}, {"Line"}),
    ({"src/a.rs": "struct Line;\n#[cfg(all(loom, test))]\nmod deep;\n", "src/a/deep.rs": "struct Line;\n"}, set()),
    ({"src/a.rs": "struct Line;\n", "tests/jobs/b.rs": "struct Line;\n"}, {"Line"}),
    ({"benches/src/a.rs": "struct Line;\n", "tests/jobs/b.rs": "struct Line;\n"}, {"Line"}),
    ({"src/a.rs": "struct Line;\n", "examples/b.rs": "struct Line;\n", "examples/c/d.rs": "struct Line;\n"}, set()),
    ({"examples/c/d.rs": "struct Line;\n", "examples/c/e.rs": "struct Line;\n"}, {"Line"}),
    ({"src/a.rs": "type Key = u32;\n", "src/b.rs": "impl A for B {\n    type Key = u32;\n}\n"}, set()),
    ({"src/a.rs": "#[cfg(a)]\nstruct Key;\n#[cfg(not(a))]\nstruct Key;\n"}, set()),
    ({"src/a.rs": "// struct Key;\nconst A: &str = \"\nstruct Key;\n\";\n", "src/b.rs": "struct Key;\n"}, set()),
    ({"src/a.rs": "struct Lease;\n", "python/src/b.rs": "struct Lease;\n"}, set()),
]


def violating_lines(rule, path, text):
    return {line for line, _ in language_rules.RULES[rule](language_rules.Source(path, text))}


def run():
    """Runs all samples, prints the ones that fail, and returns the exit status."""
    failures = []
    for rule, path, text in SAMPLES:
        lines = text.split("\n")
        expected = {number for number, line in enumerate(lines, 1) if line.endswith("<<")}
        found = violating_lines(rule, path, "\n".join(line.removesuffix("<<").rstrip() if "<<" in line else line for line in lines))
        if found != expected:
            failures.append(f"{rule}: lines {sorted(found)} instead of {sorted(expected)} in {text[:200]!r}")
    for files, expected in TYPE_SAMPLES:
        sources = [language_rules.Source(path, text) for path, text in files.items()]
        found = {text.split()[0] for _, _, text in language_rules.types_of_one_name(sources)}
        if found != expected:
            failures.append(f"type-twice: {found} instead of {expected} in {files}")
    unsampled = set(language_rules.RULES) - {rule for rule, _, text in SAMPLES if "<<" in text}
    failures += [f"{rule}: no sample violates it" for rule in sorted(unsampled)]
    for failure in failures:
        print(f"check-language: {failure}")
    print(f"check-language: {len(SAMPLES) + len(TYPE_SAMPLES)} samples, {len(failures)} failures")
    return 1 if failures else 0
