"""Activations that some program wrote to a file: reading them, what their names mean, and how their axes lie."""
