"""An extension of vLLM's workers that copies the weights of a model once they are loaded.

vLLM imports this module in each worker before the model is loaded. For the CPU it packs the weights
of linear layers after the load, and leaves empty parameters behind, so they are copied before that.
"""

from typing import Any

import vllm.model_executor.model_loader.base_loader as base_loader

_recorded: "dict[str, Any]" = {}
_process = base_loader.process_weights_after_loading


def _record_and_process(model: Any, *arguments: Any, **named: Any) -> Any:
    """Copies all parameters and stored buffers, and then processes the weights."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        _recorded[name] = tensor.detach().cpu().clone()
    return _process(model, *arguments, **named)


base_loader.process_weights_after_loading = _record_and_process


class RecordedWeights:
    """The methods that vLLM adds to its workers."""

    def recorded_weights(self) -> "dict[str, Any]":
        """Returns the copies."""
        return _recorded
