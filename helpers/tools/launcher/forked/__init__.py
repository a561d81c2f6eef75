"""The default back end: ranks forked from a warm server."""
