"""What is there: what a model holds and what one run of it computes, read off as it is."""
