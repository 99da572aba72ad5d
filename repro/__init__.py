"""The published experiments, run again: `python -m repro` and docs/records/studies.md. Not part of the package."""
