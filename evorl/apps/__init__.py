"""Apps: folders with a simulator and settings (``app.yaml``). ``evorl new`` creates an app, ``evorl run`` starts it."""
