"""From a mechanism to its privacy curve and to a guarantee; one accountant in each file."""
