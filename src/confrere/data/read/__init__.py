"""Read tables from files and databases."""
