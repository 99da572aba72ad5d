"""A whole collaboration on one machine or cluster."""
