"""From a mechanism to its privacy curve to a guarantee; one accountant a file."""
