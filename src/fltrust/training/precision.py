"""Which precisions of matrix products a device has."""

import torch

from fltrust.errors import InputError


def check_precision(precision: str, device: str, *, here: bool = True) -> None:
    """Refuses what the device does not have. Of another machine (here=False) only its kind is known: it checks its processor itself."""
    if device == "cpu" and precision in ("tf32", "float16"):
        raise InputError(f"precision {precision} is for a GPU: a CPU computes in float32 or bfloat16")
    if device != "cpu" and precision == "bfloat16":
        raise InputError("precision bfloat16 is for a CPU: a GPU computes in float32, tf32 or float16")
    if precision == "bfloat16" and here and not has_bfloat16():
        raise InputError("this processor has no bfloat16 (avx512_bf16 or AMX): use precision float32")


def has_bfloat16() -> bool:
    """In hardware: without it oneDNN computes in bfloat16 too, but several times slower than in float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
