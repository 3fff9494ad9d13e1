"""Templates of an app: plain-Python simulators, copied into the app's folder ``environment``.

The copies do not import evorl: ``evorl new`` puts the client into the same folder.
"""
