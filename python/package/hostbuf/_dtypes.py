"""The types of tensors in numpy and PyTorch, by their names in safetensors."""

from __future__ import annotations

import importlib
from typing import Any

from ._error import UnsupportedError

# Of the types of less than a byte, only F4 has a name in PyTorch, for two elements in a byte.
_NAMES = {
    "BOOL": ("bool", "bool"),
    "F4": ("", "float4_e2m1fn_x2"),
    "U8": ("uint8", "uint8"),
    "I8": ("int8", "int8"),
    "F8_E5M2": ("float8_e5m2", "float8_e5m2"),
    "F8_E4M3": ("float8_e4m3fn", "float8_e4m3fn"),
    "F8_E8M0": ("float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "float8_e5m2fnuz"),
    "I16": ("int16", "int16"),
    "U16": ("uint16", "uint16"),
    "F16": ("float16", "float16"),
    "BF16": ("bfloat16", "bfloat16"),
    "I32": ("int32", "int32"),
    "U32": ("uint32", "uint32"),
    "F32": ("float32", "float32"),
    "C64": ("complex64", "complex64"),
    "F64": ("float64", "float64"),
    "I64": ("int64", "int64"),
    "U64": ("uint64", "uint64"),
    "C128": ("complex128", "complex128"),
}


def numpy_dtype(name: str) -> Any:
    """Returns numpy's type. Those of 8-bit floats and bfloat16 need the package ml_dtypes.

    Raises:
        UnsupportedError: numpy has no such type.
    """
    import numpy as np

    known = _NAMES.get(name, ("", ""))[0]
    try:
        return np.dtype(known or None) if known in np.sctypeDict else np.dtype(getattr(_ml_dtypes(), known))
    except (AttributeError, ImportError, TypeError):
        raise UnsupportedError(
            f"numpy has no type for {name}: install the package ml_dtypes, or read the tensor with PyTorch", "Unsupported"
        ) from None


def _ml_dtypes() -> Any:
    return importlib.import_module("ml_dtypes")


def torch_dtype(torch: Any, name: str) -> Any:
    """Returns PyTorch's type.

    Raises:
        UnsupportedError: this version of PyTorch has no such type.
    """
    found = getattr(torch, _NAMES.get(name, ("", ""))[1] or "-", None)
    if found is None:
        raise UnsupportedError(f"this version of PyTorch has no type for {name}", "Unsupported")
    return found


def torch_view(storage: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Returns a tensor of bytes as a tensor of a type and a shape."""
    torch = importlib.import_module("torch")
    dtype = torch_dtype(torch, name)
    if name == "F4":
        if not shape or shape[-1] % 2:
            raise UnsupportedError(f"the last dimension of a tensor of F4 is even in PyTorch: {list(shape)} is not", "Unsupported")
        shape = (*shape[:-1], shape[-1] // 2)
    if not storage.numel():
        return torch.empty(shape, dtype=dtype, device=storage.device)
    return storage.view(dtype).reshape(shape)
