"""Local training steps: one site, or many sites as one stack."""
