"""Maximum entropy: the exponential family whose expectations are given."""
