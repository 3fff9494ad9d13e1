"""Apps: folders with a simulator and settings, ``app.yaml``. ``evorl new`` creates one, and ``evorl run`` starts it."""
