"""Compiled programs that run pure steps over seeds and devices, and the training loop on the host."""
