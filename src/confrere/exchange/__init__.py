"""Topologies, averaging and gossip between sites; compression, screening, and attacks for rehearsals."""
