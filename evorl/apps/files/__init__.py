"""Files that apps are made of: simulators as plain Python, copied into the app's folder ``environment``.

They import nothing of evorl there: ``evorl new`` puts the client beside them.
"""
