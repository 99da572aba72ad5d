"""Choose partners: transfer loss, influence, similarity, clusters and profiles, with their table and page."""

from typing import Literal, get_args

Method = Literal[
    "influence", "transfer", "leave-one-out", "add-one-in", "running", "similarity", "clusters", "profiles",
    "jensen-shannon", "renyi",
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)
"""How peers can be ranked; here, so that `--help` need not load the rest."""
