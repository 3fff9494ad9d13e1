"""Compiled programs around pure steps, over seeds and devices, and the training loop on the host."""
