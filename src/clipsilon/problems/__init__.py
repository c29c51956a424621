"""What is to be learnt, and on whom: data, loss, response and region."""
