"""Operators on populations: pure functions on pytrees whose leaves have a leading axis P."""
