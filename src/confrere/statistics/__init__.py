"""Effects with their uncertainty, and the one rule for «better», «worse» and «no clear difference»."""
