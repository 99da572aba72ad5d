"""One site in the field: its node, durable store, replay, delivery, membership, roster, control and status."""
