"""Steering: vectors that lead a model from one kind of text to another, added to its steps or taken out of them."""
