"""What is learnt, and from whom: data, loss, response and region."""
