"""What the steps between text and prediction are: a table of rows, and an operation for each way of making one."""
