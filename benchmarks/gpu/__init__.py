"""Measurements for GPUs: programs compiled for a described device, and speed where a device is present."""
