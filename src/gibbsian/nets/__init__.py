"""Plain networks."""
