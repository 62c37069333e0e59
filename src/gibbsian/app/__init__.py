"""The command line and what it stands on: recipes, runs, evaluation, reports."""
