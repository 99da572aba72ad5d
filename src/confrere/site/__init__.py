"""One site over a whole run, in every runtime: rounds, training, peers, checkpoints and result folders."""
