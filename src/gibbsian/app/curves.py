"""The numbers of a run that are drawn as curves, in their order, and what each says. Imports nothing, since viewers begin at once."""

CURVES = {
    "loss": "the objective, averaged between two records",
    "validation_loss": "the objective on held-out rows",
    "validation_energy_gap": "mean energy of held-out less that of training rows: a growing gap is overfitting",
    "validation_error": "share of held-out rows given a wrong class",
    "gap": "energy of data less that of the model's samples",
    "accuracy": "share of right answers while training",
    "gradient_norm": "length of the gradient",
    "acceptance": "share of moves that the sampler accepts",
    "lr": "learning rate",
}
