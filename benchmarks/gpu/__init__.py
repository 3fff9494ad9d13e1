"""Measurements for GPUs: what the compiler says of a described device, and speed where a device is present."""
