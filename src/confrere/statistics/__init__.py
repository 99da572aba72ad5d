"""Intervals of differences, and the one rule for «better», «worse» and «no clear difference»."""
