"""A loader of weights for vLLM: the workers of a host read the files of a model once, into one
buffer that all of them share, and each worker takes its part from there.

::

    pip install hostbuf                       # vLLM finds the plugin
    vllm serve MODEL --load-format hostbuf --tensor-parallel-size 8

MODEL is a folder with files of safetensors. The options of ``--model-loader-extra-config`` are
``backend``, a backend of :class:`hostbuf.File`, and ``register`` (default true): the GPUs then copy
from registered memory, at full speed. The memory of the buffer is released when the weights are
loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from ._error import InvalidError, LoadError
from ._load import HostTensors, load
from ._register import register as _register

_OPTIONS = ("backend", "register")
# The index that Hugging Face's and vLLM's own loaders use.
_INDEX = "model.safetensors.index.json"


class ProcessGroupComm:
    """A process group of ``torch.distributed`` as a communicator, with the methods of mpi4py that
    hostbuf calls. The group works on memory of the host (gloo)."""

    def __init__(self, group: Any, ranks: list[int] | None = None) -> None:
        torch = importlib.import_module("torch")
        self._distributed = torch.distributed
        self._torch = torch
        self._group = group
        # The ranks of the members in the whole job.
        self._ranks = list(self._distributed.get_process_group_ranks(group)) if ranks is None else ranks

    def Get_rank(self) -> int:
        """Returns the rank of this process."""
        return int(self._distributed.get_rank(self._group))

    def Get_size(self) -> int:
        """Returns the number of ranks."""
        return int(self._distributed.get_world_size(self._group))

    def Allgather(self, mine: Any, every: Any) -> None:
        """Gathers the bytes of all ranks."""
        if not len(mine):
            return
        # vLLM may have set another device as the default one.
        own = self._torch.tensor(list(mine), dtype=self._torch.uint8, device="cpu")
        parts = [self._torch.empty_like(own) for _ in range(self.Get_size())]
        self._distributed.all_gather(parts, own, group=self._group)
        every[:] = b"".join(bytes(part.tolist()) for part in parts)

    def Bcast(self, data: Any, root: int) -> None:
        """Sends the bytes of one rank to all."""
        if not len(data):
            return
        shared = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
        self._distributed.broadcast(shared, self._ranks[root], group=self._group)
        data[:] = shared.numpy().tobytes()

    def Split(self, color: int, key: int) -> ProcessGroupComm:
        """Makes a group of the ranks with the same color. ``key`` is their order already."""
        colors: list[Any] = [None] * self.Get_size()
        self._distributed.all_gather_object(colors, color, group=self._group)
        made = None
        for one in sorted(set(colors)):
            ranks = [rank for rank, other in zip(self._ranks, colors) if other == one]
            group = self._distributed.new_group(ranks, backend="gloo")
            if one == color:
                made = ProcessGroupComm(group, ranks)
        assert made is not None
        return made

    def Free(self) -> None:
        """Frees the group."""
        self._distributed.destroy_process_group(self._group)

    def Iprobe(self) -> bool:
        """Does nothing: gloo has threads of its own."""
        return False


def weight_files(folder: str, patterns: Iterable[str] | None = None) -> list[str]:
    """Returns the files with the weights of a model, or their index.

    Args:
        folder: the folder of the model.
        patterns: the patterns of the names of the files. By default these are the files of
            ``model.safetensors.index.json``, or without it those of safetensors. Files in the
            format of Mistral (``consolidated*``) count only if there are no others, since they are
            a second copy of the weights.

    Raises:
        InvalidError: the folder does not exist, or has no such file.
    """
    place = pathlib.Path(folder)
    if not place.is_dir():
        raise InvalidError(
            f"the load format hostbuf reads a folder, and {folder} is none: download the model first, "
            "as with huggingface-cli download",
            "Invalid",
        )
    if patterns is None and (place / _INDEX).is_file():
        return [str(place / _INDEX)]
    wanted = ["*.safetensors"] if patterns is None else list(patterns)
    found = sorted({path for pattern in wanted for path in place.glob(pattern) if path.suffix == ".safetensors"})
    if patterns is None:
        found = [path for path in found if not path.name.startswith("consolidated")] or found
    if not found:
        raise InvalidError(
            f"the load format hostbuf reads safetensors, and {folder} has no file {' or '.join(wanted)} of them: "
            "convert the weights, or use another load format",
            "Invalid",
        )
    return [str(path) for path in found]


@contextlib.contextmanager
def weights(
    paths: str | list[str], comm: Any, gpu: int | None, backend: str = "auto"
) -> Iterator[Iterator[tuple[str, Any]]]:
    """Loads files once per host, and yields the names and tensors, which are views of the buffer,
    for the time of a ``with`` block. Collective.

    Args:
        paths: a folder, or the files.
        comm: a communicator, or None for this process alone.
        gpu: the number of the GPU that copies from registered memory, or None to register nothing.
        backend: a backend of :class:`hostbuf.File`.
    """
    tensors = load(paths, comm, backend=backend)
    assert isinstance(tensors, HostTensors)
    registered = contextlib.nullcontext() if gpu is None else _register(tensors.buffer, f"cuda:{gpu}")
    try:
        with registered:
            yield ((name, tensors.torch(name)) for name in tensors)
            if gpu is not None:
                importlib.import_module("torch").cuda.synchronize(gpu)
    finally:
        tensors.buffer.close()


def _sources(model: Any, model_config: Any) -> Iterator[tuple[str, list[str]]]:
    """Returns the prefix of the names and the files of each source of the weights of a model."""
    yield "", weight_files(model_config.model, getattr(model, "allow_patterns_overrides", None))
    for source in getattr(model, "secondary_weights", ()):
        folder = os.path.join(source.model_or_path, getattr(source, "subfolder", None) or "")
        yield source.prefix, weight_files(folder, getattr(source, "allow_patterns_overrides", None))


def register() -> None:
    """Registers the loader with vLLM as the load format ``hostbuf``. vLLM calls it as a plugin."""
    loaders = importlib.import_module("vllm.model_executor.model_loader")

    class HostbufModelLoader(loaders.BaseModelLoader):  # type: ignore[misc, name-defined]
        """Reads the weights once per host."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            options = dict(load_config.model_loader_extra_config or {})
            unknown = sorted(set(options) - set(_OPTIONS))
            if unknown:
                raise InvalidError(f"invalid option {unknown[0]} of the load format hostbuf: expected {', '.join(_OPTIONS)}", "Invalid")
            self.backend = options.get("backend", "auto")
            self.registers = options.get("register", True)

        def download_model(self, model_config: Any) -> None:
            """Checks that the model is a folder with files of safetensors."""
            weight_files(model_config.model)

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Loads the weights into the parameters of a model."""
            sources = list(_sources(model, model_config))
            torch = importlib.import_module("torch")
            comm = None
            if torch.distributed.is_initialized():
                comm = ProcessGroupComm(importlib.import_module("vllm.distributed").get_world_group().cpu_group)
            gpu = torch.cuda.current_device() if self.registers and torch.cuda.is_available() else None
            with contextlib.ExitStack() as opened:
                everything = [
                    (prefix, opened.enter_context(weights(files, comm, gpu, self.backend))) for prefix, files in sources
                ]
                loaded = model.load_weights((prefix + name, tensor) for prefix, named in everything for name, tensor in named)
            if getattr(model_config, "quantization", None) is None and loaded is not None:
                self._check_all_loaded(model, loaded)

        def _check_all_loaded(self, model: Any, loaded: set[str]) -> None:
            """Raises an error if the files lack a parameter of the model, by the rules of vLLM's
            own loader."""
            track = getattr(getattr(loaders, "DefaultModelLoader", None), "track_weights_loading", None)
            if track is not None:
                track(self, model, loaded)
                return
            missing = sorted({name for name, _ in model.named_parameters()} - loaded)
            if missing:
                raise LoadError(f"the files of the model do not contain the weights {', '.join(missing)}", "Missing")

    loaders.register_model_loader("hostbuf")(HostbufModelLoader)
