"""What settings are called elsewhere in the field, and here: for errors in words."""

from __future__ import annotations

from collections.abc import Iterable

# Ours, with words that papers and other libraries have for it; a word may stand for several of ours.
_WORDS = {
    "agent": "algo algorithm alg model agent_name",
    "env": "environment env_id env_name game task",
    "discount": "gamma discount_factor discounting",
    "learning_rate": "lr step_size stepsize lr_actor lr_critic pi_lr vf_lr policy_lr q_lr actor_lr critic_lr",
    "actor_optimizer": "optimizer optim",
    "max_grad_norm": "grad_clip clip_grad grad_norm max_gradient_norm gradient_clip grad_norm_clip",
    "replay_capacity": "buffer_size replay_size memory_size buffer_capacity replay_buffer_size capacity",
    "n_step": "n_steps nstep multi_step",
    "rollout_length": "n_steps num_steps unroll_length rollout_steps steps_per_env rollout_fragment_length horizon",
    "torso": "hidden_sizes hidden_layers hidden_dims hidden_dim hidden_size hidden_units net_arch layer_sizes features",
    "num_envs": "n_envs num_environments nenvs num_workers num_actors envs_per_worker parallel",
    "batch_size": "minibatch_size mini_batch_size sample_batch_size train_batch_size",
    "num_minibatches": "batch_size minibatch_size mini_batch_size n_minibatches nminibatches sgd_minibatch_size",
    "num_epochs": "n_epochs update_epochs noptepochs ppo_epochs num_sgd_iter updates_per_batch",
    "clip_epsilon": "clip_range clip_coef clip_ratio clip_param eps_clip clipping_epsilon cliprange clip",
    "entropy_coefficient": "ent_coef entropy_coef entropy_cost entropy_coeff entropy_bonus",
    "value_coefficient": "vf_coef value_coef vf_coeff value_loss_coef baseline_cost",
    "gae_lambda": "lam lambda lambda_ gae_lam td_lambda",
    "tau": "polyak target_smoothing_coefficient soft_update ema target_update_rate",
    "total_timesteps": "total_steps num_timesteps total_env_steps num_env_steps max_steps num_steps n_timesteps steps",
    "updates_per_iteration": "gradient_steps grad_steps utd utd_ratio num_updates replay_ratio train_freq",
    "learning_starts": "warmup_steps start_steps random_steps min_replay_size initial_steps prefill",
    "num_seeds": "seeds n_seeds",
    "pop_size": "popsize population population_size num_individuals num_members members lambda",
    "initial_std": "sigma sigma_init init_std std noise_std",
    "eval_episodes": "n_eval_episodes num_eval_episodes evaluation_episodes",
    "eval_interval": "eval_freq eval_every evaluation_interval eval_frequency",
    "log_interval": "log_freq log_every logging_interval",
    "checkpoint_interval": "save_freq save_interval save_every checkpoint_freq checkpoint_every",
    "action_repeat": "frame_skip frameskip skip",
    "history": "frame_stack num_stack stack framestack n_stack",
    "max_episode_steps": "time_limit episode_length max_episode_length episode_limit",
    "reward_scale": "reward_scaling",
    "normalize_rewards": "norm_reward normalize_reward reward_norm reward_normalization",
    "normalize_obs": "obs_norm norm_obs normalize_observations normalize observation_normalization",
    "num_critics": "n_critics num_qs ensemble_size",
    "share": "exploration_fraction epsilon_decay eps_decay",
    "devices": "device num_devices n_devices gpus num_gpus",
    "resume": "checkpoint load restore load_path resume_from",
    "runs_folder": "logdir log_dir save_dir output_dir out_dir results_dir",
    "title": "exp_name experiment_name run_name",
    "wandb": "track use_wandb logger",
}
_OURS: dict[str, tuple[str, ...]] = {}
for _ours, _others in _WORDS.items():
    for _word in _others.split():
        _OURS[_word] = (*_OURS.get(_word, ()), _ours)


def called_here(name: str, valid: Iterable[str]) -> list[str]:
    """Which of the valid names, dotted ones by their last part, mean what ``name`` means elsewhere.

    They are of the first setting that is there at all, and those that stand where ``name`` does come first, then
    those that stand highest.
    """
    above, _, last = name.lower().rpartition(".")
    options = list(valid)
    for ours in _OURS.get(last, ()):
        found = [option for option in options if option.rpartition(".")[2] == ours and option != name]
        if beside := [option for option in found if option.rpartition(".")[0] == above]:
            return beside
        if found:
            highest = min(option.count(".") for option in found)
            return [option for option in found if option.count(".") == highest]
    return []
