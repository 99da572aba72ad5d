"""Whom to learn from, and how to make a common model one's own: personalised learning for medical data."""
