"""Measurements for GPUs: programs compiled for a described device, and speed on a device that is present."""
