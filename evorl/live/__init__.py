"""Monitoring: live page of runs, metrics of runs and clients, and profiles."""
