"""Recurrent decoders with attention: one step, and the loop over it."""
