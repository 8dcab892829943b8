"""The numbers of the tokens that are no words; the same in every vocabulary."""

PAD, START, END, UNKNOWN = range(4)
