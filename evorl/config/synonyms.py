"""Names that papers and other libraries use for evorl's settings, agents and simulators.

Error messages suggest evorl's name for an unknown name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# evorl's names, each with its synonyms. If a synonym belongs to several names, the first existing one is suggested. A
# name is the end of a dotted key; with a leading "/", a top-level key, also of a nested algorithm.
_SETTINGS = {
    "agent": "algo algorithm alg model agent_name",
    "env": "environment env_id env_name game task",
    "discount": "gamma discount_factor discounting rewards_gamma reward_discount",
    "value_learning_rate_scale": "critic_scale value_lr_scale critic_lr_scale",
    "critic_optimizer.learning_rate": "critic_scale lr_critic critic_lr q_lr vf_lr qf_lr critic_learning_rate",
    "actor_optimizer.learning_rate": "lr_actor actor_lr pi_lr policy_lr actor_learning_rate",
    "temperature_optimizer.learning_rate": "alpha_lr temperature_lr ent_coef_lr",
    "policy_optimizer.learning_rate": "pi_lr policy_lr",
    "optimizer.learning_rate": "value_learning_rate_scale critic_scale vf_lr",
    "lr_schedule": "lr step_size stepsize learning_rate",
    "learning_rate": "lr step_size stepsize lr_actor lr_critic pi_lr vf_lr policy_lr q_lr actor_lr critic_lr "
    "initial_learning_rate base_lr anneal_lr use_linear_schedule linear_schedule lr_schedule lr_annealing lr_decay",
    "optimizer.learning_rate.end": "learning_rate_end final_learning_rate end_learning_rate lr_end min_lr",
    "optimizer.learning_rate.share": "max_global_step anneal_steps lr_decay_steps",
    "actor_optimizer": "optimizer optim",
    "optimizer": "optim optimizer_class",
    "max_grad_norm": "grad_clip clip_grad grad_norm max_gradient_norm gradient_clip grad_norm_clip "
    "gradients_norm_clipping gradient_clipping clip_grad_norm max_gradients_norm",
    "replay_capacity": "buffer_size replay_size memory_size buffer_capacity replay_buffer_size capacity "
    "max_replay_size buffer memory_capacity",
    "n_step": "n_steps nstep multi_step num_step_returns nsteps n_step_returns",
    "num_minibatches": "batch_size minibatch_size mini_batch_size mini_batch n_minibatches nminibatches "
    "sgd_minibatch_size num_batches",
    "rollout_length": "n_steps num_steps unroll_length rollout_steps steps_per_env rollout_fragment_length horizon "
    "rollout_len batch_size timesteps_per_batch steps_per_epoch timesteps_per_actorbatch nsteps",
    "torso": "hidden_sizes hidden_layers hidden_dims hidden_dim hidden_size hidden_units net_arch layer_sizes features "
    "layers hidden_layer_sizes policy_hidden_layer_sizes input universe",
    "network": "policy policy_kwargs policy_class network_factory agent_kwargs policy_network",
    "dtype": "compute_dtype mixed_precision",
    "recurrent": "use_lstm lstm_type lstm_num_cores lstm use_rnn rnn rnn_type lstm_hidden_size",
    "num_envs": "n_envs num_environments nenvs num_workers num_actors envs_per_worker parallel num_rollout_workers",
    "batch_size": "minibatch_size mini_batch_size mini_batch sample_batch_size train_batch_size",
    "num_value_epochs": "value_func_iterations train_v_iters vf_iters vf_iterations vf_epochs critic_epochs "
    "value_epochs",
    "num_epochs": "n_epochs update_epochs noptepochs ppo_epochs num_sgd_iter updates_per_batch policy_iterations "
    "num_updates_per_batch train_pi_iters epochs value_func_iterations train_v_iters vf_iters",
    "clip_epsilon": "clip_range clip_coef clip_ratio clip_param eps_clip clipping_epsilon cliprange clip clip_eps "
    "clip_e",
    "value_clip_epsilon": "vf_clipped_loss clip_range_vf clip_vloss clip_value_loss vf_clip_param vf_clip clip_value "
    "clipping_epsilon_value value_clip",
    "entropy_coefficient": "ent_coef entropy_coef entropy_cost entropy_coeff entropy_bonus entropy_beta entropy "
    "entropy_weight beta",
    "value_coefficient": "vf_coef value_coef vf_coeff value_loss_coef baseline_cost vf_loss_coefficient critic_coef "
    "value_loss_coefficient vf_loss_coeff",
    "value_l2": "l2_coeff critic_l2 value_weight_decay",
    "normalize_advantages": "normalize_advantage norm_adv standardize_advantages normalise_advantages norm_advantage "
    "advantage_normalization",
    "policy_loss_clip": "policy_clip",
    "value_loss_clip": "critic_clip",
    "gae_lambda": "lam lambda lambda_ gae_lam td_lambda gae_gamma",
    "q_lambda": "lam lambda lambda_ td_lambda gae_lambda",
    "vtrace_lambda": "lam lambda lambda_ td_lambda gae_lambda",
    "/kind": "subtype trpo_type",
    "/linesearch": "line_search",
    "trust_region.accept_by": "linesearch_type",
    "trust_region.max_kl": "max_kl target_kl delta kl_target max_kl_divergence",
    "trust_region.damping": "cg_damping fvp_damping",
    "trust_region.cg_iterations": "cg_iters cg_max_steps cg_steps num_cg_iterations",
    "trust_region.backtrack_factor": "backtrack_coeff line_search_shrinking_factor",
    "trust_region.max_trials": "backtrack_iters line_search_max_iter",
    "target_kl": "kl_target max_kl",
    "tau": "polyak target_smoothing_coefficient soft_update ema target_update_rate soft_target_tau polyak_tau",
    "target_update_interval": "update_target_weights_interval target_network_frequency target_update_freq "
    "target_network_update_freq hard_update_interval target_update_period target_update_frequency",
    "policy_delay": "policy_freq policy_frequency policy_update_delay delayed_policy_update",
    "target_noise": "policy_noise target_policy_noise smoothing_noise",
    "target_noise_bound": "noise_clip target_noise_clip",
    "noise.scale": "ou_sigma exploration_noise exploration_sigma action_noise explore_noise act_noise noise_std",
    "noise.theta": "ou_theta",
    "temperature": "alpha ent_coef entropy_coef init_temperature initial_temperature init_alpha entropy_beta",
    "adaptive_temperature": "autotune auto_alpha learn_alpha automatic_entropy_tuning learnable_temperature",
    "target_entropy_scale": "target_entropy",
    "epsilon.start": "initial_eps start_e exploration_initial_eps eps_start epsilon_start initial_epsilon eps_initial",
    "epsilon.end": "end_eps end_e exploration_final_eps eps_end epsilon_end final_epsilon final_eps epsilon_min",
    "epsilon.share": "exploration_fraction epsilon_decay eps_decay decay_steps eps_decay_steps epsilon_decay_steps",
    "epsilon": "eps exploration exploration_rate",
    "max_final_epsilon": "stochastic stochastic_eps",
    "double": "double_dqn double_q ddqn use_double",
    "dueling": "dueling_dqn dueling_network use_dueling",
    "noisy": "noisy_net noisy_nets use_noisy",
    "num_atoms": "n_atoms num_quantiles n_quantiles atoms",
    "support_low": "v_min vmin",
    "support_high": "v_max vmax",
    "huber_delta": "huber huber_loss",
    "prioritized": "per prioritized_replay use_per prioritized_experience_replay",
    "priority_exponent": "per_alpha prioritized_replay_alpha priority_alpha",
    "importance_exponent": "per_beta prioritized_replay_beta priority_beta",
    "replay.recency": "alpha recency_alpha",
    "absolute_errors": "l1_loss use_l1",
    "munchausen": "use_munchausen m_dqn",
    "desired_kl": "adaptive_kl adaptive_lr use_adaptive_lr",
    "num_critics": "n_critics num_qs ensemble_size num_q_networks",
    "total_timesteps": "total_steps num_timesteps total_env_steps num_env_steps max_steps num_steps n_timesteps steps "
    "max_global_step max_timesteps num_frames total_frames n_iter num_iterations timesteps",
    "updates_per_iteration": "gradient_steps grad_steps utd utd_ratio num_updates replay_ratio train_freq "
    "gd_steps_per_step grad_updates_per_step loop_size policy_updates train_frequency",
    "learning_starts": "warmup_steps start_steps random_steps min_replay_size initial_steps prefill fill_buffer warmup "
    "start_training_after_x_steps warmup_len min_buffer_size learning_start",
    "intrinsic": "use_icm icm use_rnd rnd use_e3b e3b curiosity",
    "normalize_obs": "obs_norm norm_obs normalize_observations normalize observation_normalization use_filter zfilter",
    "normalize_rewards": "norm_reward normalize_reward reward_norm reward_normalization",
    "num_seeds": "seeds n_seeds",
    "pop_size": "popsize population population_size num_individuals num_members members lambda",
    "initial_log_std": "log_std_init init_noise_std initial_noise_std log_std std_init",
    "initial_std": "sigma sigma_init init_std std noise_std",
    "noise_std_schedule": "sigma sigma_init init_std std noise_std initial_std",
    "eval_episodes": "n_eval_episodes num_eval_episodes evaluation_episodes num_eval_envs",
    "eval_interval": "eval_freq eval_every evaluation_interval eval_frequency num_evals evaluate_every "
    "evaluate_every_x_steps",
    "log_interval": "log_freq log_every logging_interval",
    "checkpoint_interval": "save_freq save_interval save_every checkpoint_freq checkpoint_every save_agent_every "
    "save_agent_every_x_steps checkpoint_step_interval",
    "checkpoint_seconds": "checkpoint_time_interval checkpoint_secs",
    "checkpoints_kept": "checkpoints_to_keep max_to_keep keep_checkpoints",
    "best_checkpoints_kept": "best_checkpoints_to_keep",
    "best_over": "avg_in_num_batches",
    "stop": "early_stopping early_stop",
    "stop.at": "target_return reward_threshold stop_reward",
    "stop.patience": "early_stopping_patience max_no_improvement_evals",
    "stop.hours": "max_hours time_budget",
    "action_repeat": "frame_skip frameskip skip",
    "history": "frame_stack num_stack stack framestack n_stack",
    "max_episode_steps": "time_limit episode_length max_episode_length episode_limit timestep_limit",
    "reward_scale": "reward_scaling",
    "share": "exploration_fraction epsilon_decay eps_decay decay_steps",
    "devices": "device num_devices n_devices gpus num_gpus cuda use_cuda",
    "deterministic": "torch_deterministic cudnn_deterministic",
    "precision": "matmul_precision float32_matmul_precision default_matmul_precision allow_tf32",
    "resume": "checkpoint load restore load_path resume_from",
    "runs_folder": "logdir log_dir save_dir output_dir out_dir results_dir tensorboard_log save_path",
    "title": "exp_name experiment_name run_name",
    "render_interval": "capture_video record_video video_interval save_video",
    "recorders.wandb": "track use_wandb logger wandb wandb_project_name wandb_project wandb_entity",
    "recorders.progress": "verbose progress_bar quiet",
}
# Agents and simulator libraries, which a config selects by name.
_NAMES = {
    "a2c": "da3c a3c actor_critic",
    "reinforce": "policy_gradient pg vpg vanilla_policy_gradient",
    "ppo": "dppo ppo2 ppo_clip appo ippo mappo dpo",
    "trpo": "trpo_d1 trpo_d2 npg natural_policy_gradient",
    "dqn": "ddqn double_dqn dueling_dqn qrdqn qr_dqn iqn munchausen_dqn deep_q_network",
    "rainbow": "c51 rainbow_dqn",
    "pqn_recurrent": "pqn_rnn recurrent_pqn",
    "pqn_continuous": "continuous_pqn",
    "reppo": "relative_entropy_policy_optimization",
    "r2d2": "drqn recurrent_dqn",
    "sac": "sac_v1 soft_actor_critic her",
    "recurrent_sac": "sac_lstm rsac sac_rnn",
    "fast_td3": "fasttd3",
    "tqc": "truncated_quantile_critics",
    "iql": "cql awac implicit_q_learning",
    "crossq": "cross_q",
    "xqc": "crossq_wn",
    "simba": "sac_simba simba_sac",
    "simba_v2": "simbav2 hyper_simba",
    "flash_sac": "flashsac fast_sac fastsac",
    "bro": "bronet bro_fast",
    "rlpd": "redq droq",
    "ec/openes": "es openai_es evolution_strategies open_es",
    "ec/cmaes": "cma_es cma",
    "ec/ars": "augmented_random_search",
    "ec/sepcem": "cem cross_entropy_method",
    "ec/ga": "genetic genetic_algorithm",
    "ec/nsga2": "nsga nsga_ii nsgaii",
    "qd/map_elites": "mapelites me quality_diversity dns dominated_novelty_search",
    "qd/pga_me": "pga_map_elites pga_mapelites",
    "qd/cma_me": "cmame cma_map_elites",
    "qd/cma_mae": "cmamae cma_map_annealing",
    "erl/cemrl": "cem_rl cemrl",
    "erl/erl": "evolutionary_rl erl",
    "meta/pbt": "population_based_training pbt pb2",
    "gymnasium": "openai_gym gym openai openai_gymnasium atari",
    "deepmind-lab": "lab dmlab deepmind_lab",
    "vizdoom": "gym_doom doom viz_doom",
    "empty": "custom own customised customized",
}
# Arguments and settings without a counterpart, and what to do instead.
_REMARKS = {
    "enable_jit": "Remove it: training is always compiled. To debug without compilation, use jax.disable_jit().",
    "enable_multi_devices": "Set the number of devices in the config: devices=auto, or a number.",
}
_REMARKS |= dict.fromkeys(("use_jit", "jit"), _REMARKS["enable_jit"])
_REMARKS |= dict.fromkeys(("enable_pmap", "use_pmap", "multi_devices"), _REMARKS["enable_multi_devices"])


def _by_synonym() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for name, synonyms in (*_SETTINGS.items(), *_NAMES.items()):
        for synonym in synonyms.split():
            names[synonym] = (*names.get(synonym, ()), name)
    return names


_NAMES_BY_SYNONYM = _by_synonym()


def advice_for(name: str) -> str | None:
    """Return advice for a setting or argument without a counterpart in evorl; ``None`` for other names."""
    return _REMARKS.get(name.rpartition(".")[2])


def refuse_arguments(function: str, arguments: Iterable[str]) -> None:
    """Raise ``TypeError`` for unexpected keyword arguments, with advice for arguments of other libraries.

    Args:
        function: name of the function.
        arguments: names of the unexpected arguments.

    Raises:
        TypeError: ``arguments`` is not empty.
    """
    for name in arguments:
        remark = advice_for(name)
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}.{f' {remark}' if remark else ''}")


def names_for_synonym(name: str, valid: Iterable[str]) -> list[str]:
    """Return the valid names that have ``name`` as a synonym in papers or other libraries.

    If several of evorl's names have this synonym, the first one with a valid key is used. A name matches the end of
    dotted keys. Keys at the level of ``name`` have precedence, then keys with the fewest parts.

    Args:
        name: synonym of a setting, an agent or a simulator; case-insensitive, and ``-`` matches ``_``.
        valid: valid names in evorl.
    """
    above, _, last = name.lower().replace("-", "_").rpartition(".")
    options = list(valid)
    for evorl_name in _NAMES_BY_SYNONYM.get(last, ()):
        matches = [option for option in options if _is_called(option, evorl_name) and option != name]
        if siblings := [option for option in matches if option.rpartition(".")[0] == above]:
            return siblings
        if matches:
            highest = min(option.count(".") for option in matches)
            return [option for option in matches if option.count(".") == highest]
    return []


def _is_called(option: str, name: str) -> bool:
    if name.startswith("/"):  # a key of an algorithm, or of an algorithm nested in another one
        return option in (name[1:], *(f"{part}.{name[1:]}" for part in ("inner", "learner")))
    return option == name or option.endswith(f".{name}")


_LAYER_KINDS = {"convolution": "conv", "conv2d": "conv", "conv": "conv", "dense": "dense", "linear": "dense"}
_LAYER_OPTIONS = {"n_filters": "filters", "out_channels": "filters", "filter_size": "size", "kernel_size": "size"}
_LAYER_OPTIONS |= {"strides": "stride", "padding": "border", "units": "size", "out_features": "size"}


def convert_layer(layer: Mapping[str, Any]) -> str:
    """Convert a layer with a ``type``, as in RELAAX, to evorl's notation; return examples for an unknown type."""
    kind = str(layer["type"]).lower()
    if kind == "flatten":
        return kind
    if kind not in _LAYER_KINDS:
        return "{dense: 64}, {conv: {filters: 16, size: 3, stride: 1, border: same}} or flatten"
    options = {_LAYER_OPTIONS.get(name, name): value for name, value in layer.items() if name != "type"}
    sides = {name: value[0] for name, value in options.items() if isinstance(value, list | tuple) and value}
    text = ", ".join(f"{name}: {value}" for name, value in (options | sides).items())
    return f"{{{_LAYER_KINDS[kind]}: {{{text}}}}}"
