"""The networks a study can choose."""
