"""Mutually authenticated gRPC between nodes: connections, link, frames, handshake, identity and members."""
