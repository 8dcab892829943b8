"""Losses for sequences and for attention weights."""
