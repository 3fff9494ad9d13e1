"""Compiled programs around pure steps, over seeds and devices, and the loop that runs a training on the host."""
