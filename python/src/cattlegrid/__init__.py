"""Cattlegrid for Python. Each part is a module of its own; importing this one loads none of them."""
