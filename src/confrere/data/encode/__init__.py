"""Turn the fields of a table into numbers."""
