"""What a model is made of: one frozen configuration a part, with its own checks. Free of torch."""
