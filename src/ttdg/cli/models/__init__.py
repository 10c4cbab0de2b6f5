"""Commands about models and their parts: fit, inspect and export them."""
