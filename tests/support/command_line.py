"""Arguments of small training runs on the command line."""

from __future__ import annotations

QUIET = (
    "devices=1 env_chunk=null compilation_cache=false recorders.tensorboard=false recorders.learning_curve=false "
    "recorders.progress=false"
).split()
SMALL = (
    "env=cartpole env.max_episode_steps=10 num_envs=8 rollout_length=8 num_epochs=2 num_minibatches=2 "
    "agent.network.torso=[8] total_timesteps=128 eval_interval=64 eval_episodes=4"
).split() + QUIET
