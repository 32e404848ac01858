"""What messages mean, whichever door they come through; pure functions."""
