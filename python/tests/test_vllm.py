"""The loader for vLLM, with PyTorch and a minimal test package in the place of vLLM."""

import json
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

    def load_weights(self, named: Any) -> "set[str]":
        self.loaded = {name: tensor.clone() for name, tensor in named}
        return set(self.loaded)

    def named_parameters(self) -> "list[tuple[str, Any]]":
        return [(name, None) for name in ARRAYS]


def load_model(folder: str, model: "Model | None" = None, **options: Any) -> "dict[str, Any]":
    import hostbuf.vllm

    loaders = fake_vllm()
    hostbuf.vllm.register()
    loader = loaders["hostbuf"](types.SimpleNamespace(model_loader_extra_config=options))
    model = model or Model()
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

    def test_only_the_files_of_the_weights_are_read(self) -> None:
        import hostbuf

        model = pathlib.Path(self.folder, "model")
        # A second copy in the format of Mistral, and an array that is no weight.
        write(model / "consolidated.safetensors", {"other": ARRAYS["layer0"]})
        np.save(model / "rope.npy", ARRAYS["layer0"])
        self.assertEqual(set(load_model(str(model))), set(ARRAYS))
        names = {name: f"{name}.safetensors" for name in ARRAYS}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
        (model / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": {"other": "consolidated.safetensors"}}))
        self.assertEqual(set(load_model(str(model))), set(ARRAYS))
        empty = pathlib.Path(self.folder, "empty")
        empty.mkdir()
        with self.assertRaisesRegex(hostbuf.InvalidError, r"empty has no file \*.safetensors of them"):
            load_model(str(empty))

    def test_a_missing_weight_is_an_error(self) -> None:
        import hostbuf

        pathlib.Path(self.folder, "model", "layer3.safetensors").unlink()
        with self.assertRaisesRegex(hostbuf.LoadError, "do not contain the weights layer3"):
            load_model(f"{self.folder}/model")

    def test_a_model_names_more_files(self) -> None:
        vision = pathlib.Path(self.folder, "vision", "weights")
        vision.mkdir(parents=True)
        write(vision / "tower.safetensors", {"tower": ARRAYS["layer0"]})
        model = Model()
        model.allow_patterns_overrides = ["layer*.safetensors"]  # type: ignore[attr-defined]
        source = types.SimpleNamespace(model_or_path=f"{self.folder}/vision", subfolder="weights", prefix="vision.")
        model.secondary_weights = [source]  # type: ignore[attr-defined]
        loaded = load_model(f"{self.folder}/model", model)
        self.assertEqual(set(loaded), {*ARRAYS, "vision.tower"})
        self.assertTrue(np.array_equal(loaded["vision.tower"].numpy(), ARRAYS["layer0"]))

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
