"""A stand-in for the part of Spack's interface that a recipe uses: it records what the recipe
declares and calls. Names and parameters are those of Spack 1.0; any other one is an error."""
import functools
import sys
import types
from pathlib import Path


class Recorder:
    """The directives of a recipe, as (name, positional arguments, keywords), and its calls."""

    def __init__(self):
        self.directives = []
        self.calls = []
        self.variables = {}

    def directive(self, signature):
        """Returns a function that accepts the arguments of `signature`, and records them."""

        @functools.wraps(signature)
        def record(*arguments, **keywords):
            signature(*arguments, **keywords)
            self.directives.append((signature.__name__, arguments, keywords))

        return record


# Exactly the parameters of the directives.
def version(ver, checksum=None, *, sha256=None, url=None, git=None, branch=None, tag=None, commit=None, preferred=None, deprecated=None, submodules=None): ...
def variant(name, default=None, description="", values=None, multi=None, validator=None, when=None, sticky=False): ...
def depends_on(spec, when=None, type=("build", "link"), patches=None): ...
def requires(*requirement_specs, policy="one_of", when=None, msg=None): ...
def conflicts(conflict_spec, when=None, msg=None): ...
def license(license_identifier, checked_by=None, when=None): ...
def maintainers(*names): ...


DIRECTIVES = (version, variant, depends_on, requires, conflicts, license, maintainers)


class Prefix(str):
    """A folder, whose attributes are the folders in it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Prefix(f"{self}/{name}")


class Spec:
    """A concrete package: its variants, and the packages that it depends on by name."""

    def __init__(self, name, variants, dependencies=()):
        self.name = name
        self.prefix = Prefix(f"/spack/{name}")
        self.variants = variants
        self.dependencies = {dependency.name: dependency for dependency in dependencies}

    def satisfies(self, text):
        """Returns whether this has a variant (+mpi, ~mpi) or a dependency (^name)."""
        if text[0] in "+~":
            return self.variants[text[1:]] == (text[0] == "+")
        name = text.removeprefix("^").removeprefix("[virtuals=mpi] ")
        if not text.startswith("^") or not name.isalnum():
            raise ValueError(f"the stand-in does not know the constraint {text!r}")
        return name in self.dependencies

    def __getitem__(self, name):
        return self.dependencies[name]


class Environment:
    """The variables that a recipe sets."""

    def __init__(self, recorder):
        self.recorder = recorder

    def set(self, name, value):
        self.recorder.variables[name] = str(value)


def decorator(*_arguments, **_keywords):
    """Stands for decorators that only say when a method runs."""
    return lambda method: method


def load(path):
    """Executes the recipe at `path`. Returns its module and what it records."""
    recorder = Recorder()

    class Executable:
        def __init__(self, name):
            self.name = name

        def __call__(self, *arguments):
            recorder.calls.append([self.name, *map(str, arguments)])

    class Package:
        stage = types.SimpleNamespace(path="/stage")

        def __init__(self, spec):
            self.spec, self.prefix = spec, spec.prefix

    interface = types.ModuleType("spack.package")
    interface.__dict__.update({function.__name__: recorder.directive(function) for function in DIRECTIVES})
    interface.Executable = Executable
    interface.join_path = lambda *parts: str(Path(*map(str, parts)))
    interface.run_after = interface.on_package_attributes = decorator
    generic = types.ModuleType("spack_repo.builtin.build_systems.generic")
    generic.Package = Package
    modules = {"spack": types.ModuleType("spack"), "spack.package": interface, generic.__name__: generic}
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        modules[name] = types.ModuleType(name)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        recipe = types.ModuleType("recipe")
        recipe.__file__ = str(path)
        exec(compile(path.read_text(), str(path), "exec"), recipe.__dict__)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return recipe, recorder, Environment(recorder)
