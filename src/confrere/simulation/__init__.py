"""A whole collaboration on one machine or cluster: all sites simulated, or rehearsed as nodes, and the result of the run."""
