"""The backward pass of a text."""
