"""Searches: many trainings of a recipe with other settings, chosen by Optuna, judged on held-out rows."""
