"""Models as LiteRT files: writing, reading and running them without Keras."""
