"""Train, validation and test parts, and the sites of a rehearsal."""
