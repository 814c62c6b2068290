"""Import of models of torch."""
