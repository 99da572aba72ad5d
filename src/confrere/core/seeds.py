"""Seeds: every random draw is derived from who draws, when and what for; no stream is shared."""

from __future__ import annotations

import hashlib

import torch

NOT_PRIVATE = "not private: this is a rehearsal, and its noise is drawn from a seed"
"""The label next to the ε of a run with seeded noise."""


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose; the same purpose gives the same seed on every machine.

    >>> derive(0, "site-a", 3, "noise") == derive(0, "site-a", 3, "noise")
    True
    >>> derive(0, "site-a", 3, "noise") == derive(0, "site-b", 3, "noise")
    False
    """
    text = "\x1f".join([str(seed), *[f"{type(p).__name__}:{p}" for p in purpose]])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose, so that results do not depend on the device."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def seed_torch(seed: int) -> None:
    """Set the seed of torch's default generators, of the CPU and of a GPU if there is one.

    Without a GPU `torch.manual_seed` would format and keep three tracebacks on every call.
    """
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
