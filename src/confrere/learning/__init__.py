"""Objectives, training, networks, class balance, mutual learning, optimisers and evaluation."""
