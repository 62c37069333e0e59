"""Derivatives of energies and networks: scores, Hessian products, Taylor series, gradients known in closed form."""
