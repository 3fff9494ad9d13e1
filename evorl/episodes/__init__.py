"""Episodes step by step: options of their recording, records on the host, files of an episode, and replays.

``evorl.evaluators.step_record`` records steps within a compiled program.
"""
