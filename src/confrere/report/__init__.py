"""Readers of the journal: history, progress, tables, words, gains and the HTML report."""
