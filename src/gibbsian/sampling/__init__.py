"""Running kernels: chains, what they return, how well they mixed, and how they are tuned."""
