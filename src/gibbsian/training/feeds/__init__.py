"""What feeds a training run: batches of tensors, arrays on disk, datasets and loaders, from a position that is kept."""
