"""The web interface: the parts that both programs share."""
