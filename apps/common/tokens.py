"""Ids of the special tokens, the same in every vocabulary."""

PAD, START, END, UNKNOWN = range(4)
