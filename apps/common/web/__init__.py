"""Pages in a browser: what those of both programs share."""
