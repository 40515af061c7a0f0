"""Runs the real model on meta tensors in a child process and returns what training it allocates: a Footprint."""
