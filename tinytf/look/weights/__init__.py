"""The weights of heads as circuits: what a head reads and writes without any text."""
