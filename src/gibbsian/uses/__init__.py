"""What a trained energy is for: modes, predictions, restoration, classification."""
