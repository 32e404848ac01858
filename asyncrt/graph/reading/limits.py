"""How large may a model be, and how many axes may its tensors have? As much as the options allow."""

from __future__ import annotations

from asyncrt.errors import ModelLimitError
from asyncrt.options import RuntimeOptions


def check_size(nbytes: int, options: RuntimeOptions, what: str) -> None:
    """Raise `ModelLimitError` if *nbytes* are more than the options allow."""
    if nbytes > options.max_model_bytes:
        raise ModelLimitError(
            f"{what} has {nbytes} bytes; RuntimeOptions.max_model_bytes is {options.max_model_bytes}",
            hint="raise max_model_bytes, if the model is to be trusted",
        )


def check_rank(rank: int, what: str, most: int) -> None:
    """Raise `ModelLimitError` if *rank* is higher than the options allow; while loading and in every request."""
    if rank > most:
        raise ModelLimitError(
            f"{what} has rank {rank}; RuntimeOptions.max_rank is {most}",
            hint="raise max_rank, if the model is to be trusted",
        )
