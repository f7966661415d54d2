"""Features: what a sparse autoencoder or transcoder finds in a step of a model, opened from a file or trained here."""
