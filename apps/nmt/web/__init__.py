"""The page of `nmt web`."""
