"""Privacy: what a step costs, what was spent, and what may leave."""

from confrere.privacy.lint import check, replace_unsafe

__all__ = ["check", "replace_unsafe"]
