"""Parcels as bytes, and the ways they travel: in memory, by pipe between workers, by gRPC between nodes."""
