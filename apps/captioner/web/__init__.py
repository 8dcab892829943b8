"""The page of `captioner web`."""
