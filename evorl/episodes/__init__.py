"""Step-by-step episodes: recording options, records on the host, episode files, and replays.

``evorl.evaluators.step_record`` records steps within a compiled program.
"""
