"""Fit a site's own model, cross-validated."""
