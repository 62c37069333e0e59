"""Pictures and words that energies, chains and runs have of themselves; `gibbsian.plots` offers them with those of other things."""
