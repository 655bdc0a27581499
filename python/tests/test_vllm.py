"""The loader for vLLM, with PyTorch and a minimal test package in the place of vLLM."""

import multiprocessing
import pathlib
import sys
import tempfile
import types
import unittest
from typing import Any

import numpy as np
from test_safe_open import write

try:
    import torch
except ImportError:
    torch = None

ARRAYS = {f"layer{number}": np.arange(number, number + 5000.0).reshape(50, 100) for number in range(4)}


def fake_vllm() -> "dict[str, type[Any]]":
    """Installs the test package, and returns the loaders that are registered with it."""
    loaders: dict[str, type[Any]] = {}
    model_loader = types.ModuleType("vllm.model_executor.model_loader")

    class BaseModelLoader:
        def __init__(self, load_config: Any) -> None:
            self.load_config = load_config

    def register_model_loader(name: str) -> Any:
        def add(loader: "type[Any]") -> "type[Any]":
            loaders[name] = loader
            return loader

        return add

    model_loader.BaseModelLoader = BaseModelLoader  # type: ignore[attr-defined]
    model_loader.register_model_loader = register_model_loader  # type: ignore[attr-defined]
    distributed = types.ModuleType("vllm.distributed")
    distributed.get_world_group = lambda: types.SimpleNamespace(cpu_group=torch.distributed.group.WORLD)  # type: ignore[attr-defined]
    packages = {"vllm": types.ModuleType("vllm"), "vllm.model_executor": types.ModuleType("vllm.model_executor")}
    sys.modules.update({**packages, "vllm.model_executor.model_loader": model_loader, "vllm.distributed": distributed})
    return loaders


class Model:
    """A model whose weights are copied, as those of vLLM."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}

    def load_weights(self, named: Any) -> None:
        self.loaded = {name: tensor.clone() for name, tensor in named}


def load_model(folder: str, **options: Any) -> "dict[str, Any]":
    import hostbuf.vllm

    loaders = fake_vllm()
    hostbuf.vllm.register()
    loader = loaders["hostbuf"](types.SimpleNamespace(model_loader_extra_config=options))
    model = Model()
    loader.load_weights(model, types.SimpleNamespace(model=folder))
    return model.loaded


def worker(rank: int, folder: str, results: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=3)
    loaded = load_model(f"{folder}/model")
    equal = all(np.array_equal(loaded[name].numpy(), array) for name, array in ARRAYS.items())
    results.put((rank, len(loaded), equal))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@unittest.skipIf(torch is None, "the loader for vLLM: there is no PyTorch")
class Vllm(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        model = pathlib.Path(folder.name, "model")
        model.mkdir()
        for name, array in ARRAYS.items():
            write(model / f"{name}.safetensors", {name: array})
        self.addCleanup(lambda: [sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "vllm"])

    def test_one_process(self) -> None:
        import hostbuf

        loaded = load_model(f"{self.folder}/model", backend="posix", register=False)
        for name, array in ARRAYS.items():
            self.assertTrue(np.array_equal(loaded[name].numpy(), array))
        with self.assertRaisesRegex(hostbuf.InvalidError, "reads a folder, and org/model is none"):
            load_model("org/model")
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid option threads"):
            load_model(f"{self.folder}/model", threads=3)

    def test_the_workers_of_a_host_share_one_buffer(self) -> None:
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        workers = [context.Process(target=worker, args=(rank, self.folder, results)) for rank in range(3)]
        for process in workers:
            process.start()
        got = sorted(results.get(timeout=60) for _ in workers)
        for process in workers:
            process.join()
        self.assertEqual(got, [(rank, len(ARRAYS), True) for rank in range(3)])
        self.assertEqual([process.exitcode for process in workers], [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
