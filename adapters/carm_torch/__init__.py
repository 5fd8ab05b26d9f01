"""Response masks for torch batches, padded or packed."""
