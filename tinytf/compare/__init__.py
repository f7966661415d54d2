"""Where two runs part: two texts, two models, or a model and the numbers of another program."""
