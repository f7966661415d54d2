"""The steps between text and prediction: a table of rows, and an operation for each way to compute one."""
