"""Synonyms of settings."""

from __future__ import annotations

import functools
import re

import pytest
import yaml

from evorl.apps.kinds import KINDS
from evorl.assembly import complete_config, workflow_class
from evorl.cli.config_tree import config_folder, config_names
from evorl.config.names import did_you_mean
from evorl.config.synonyms import _NAMES, _SETTINGS, convert_layer, names_for_synonym, refuse_arguments
from evorl.config.values import dotted_keys
from evorl.runs.spec import RunSpec
from tests.support.errors import raises_naming

PPO = ["discount", "optimizer", "optimizer.learning_rate", "rollout_length", "num_minibatches", "agent.network.torso"]
SAC = ["tau", "batch_size", "replay_capacity", "actor_optimizer.learning_rate", "critic_optimizer.learning_rate"]


@pytest.mark.parametrize(
    ("word", "valid", "meant"),
    [
        ("gamma", PPO, ["discount"]),
        ("optimizer.lr", PPO, ["optimizer.learning_rate"]),
        ("lr_critic", SAC, ["critic_optimizer.learning_rate"]),
        ("lr", SAC, ["actor_optimizer.learning_rate", "critic_optimizer.learning_rate"]),
        ("critic_optimizer.lr", SAC, ["critic_optimizer.learning_rate"]),
        ("batch_size", PPO, ["num_minibatches"]),
        ("minibatch_size", SAC, ["batch_size"]),
        ("n_steps", [*PPO, "n_step"], ["n_step"]),
        ("hidden_sizes", PPO, ["agent.network.torso"]),
        ("gamma", ["inner.discount", "search_space.inner.discount"], ["inner.discount"]),
        ("BUFFER_SIZE", SAC, ["replay_capacity"]),
        ("gamma", SAC, []),
        ("discount", PPO, []),
    ],
)
def test_a_word_is_told_by_the_settings_that_there_are(word: str, valid: list[str], meant: list[str]) -> None:
    assert names_for_synonym(word, valid) == meant


def test_what_is_meant_is_told_before_what_is_spelled_alike() -> None:
    assert did_you_mean("n_envs", ["num_envs", "n_env"]) == " Did you mean 'num_envs'?"
    assert did_you_mean("lr", SAC).endswith("'actor_optimizer.learning_rate' or 'critic_optimizer.learning_rate'?")


FOLDER = config_folder()
RUN = RunSpec().as_config()
OPTIONS = yaml.safe_load((FOLDER / "env" / "_options.yaml").read_text(encoding="utf-8"))


@functools.cache
def keys_of(agent: str) -> tuple[str, ...]:
    """Return every config key of a training run of this agent, including keys of the run and of any environment."""
    file = yaml.safe_load((FOLDER / "agent" / f"{agent}.yaml").read_text(encoding="utf-8"))
    file.pop("defaults", None)
    config = complete_config(workflow_class(file["workflow"]), file)
    return tuple(dotted_keys({**RUN, **OPTIONS, **config}))


AGENTS = config_names(FOLDER / "agent")


@pytest.mark.parametrize("name", sorted({name.removeprefix("/") for name in _SETTINGS}))
def test_every_name_that_is_answered_is_a_setting_of_an_agent(name: str) -> None:
    assert any(key == name or key.endswith(f".{name}") for agent in AGENTS for key in ("agent", "env", *keys_of(agent)))


def test_every_agent_and_simulator_that_is_answered_exists() -> None:
    assert set(_NAMES) <= {*AGENTS, *KINDS}


# Names of agents' settings elsewhere: RELAAX, Stable-Baselines3, CleanRL, rejax, brax, xpag, Spinning Up.
PAIRS = """
a2c: critic_scale value_learning_rate_scale, entropy_beta agent.entropy_coefficient, batch_size rollout_length,
    rewards_gamma discount, policy_clip agent.policy_loss_clip, critic_clip agent.value_loss_clip, vf_coef
    agent.value_coefficient, normalize_advantage agent.normalize_advantages, use_lstm agent.network.recurrent,
    use_icm intrinsic, gradients_norm_clipping optimizer.max_grad_norm, initial_learning_rate
    optimizer.learning_rate, learning_rate_end optimizer.learning_rate.end, max_global_step
    optimizer.learning_rate.share, use_filter agent.normalize_obs, avg_in_num_batches best_over, checkpoints_to_keep
    checkpoints_kept, best_checkpoints_to_keep best_checkpoints_kept, checkpoint_time_interval checkpoint_seconds,
    checkpoint_step_interval checkpoint_interval, lr optimizer.learning_rate
ppo: critic_scale value_learning_rate_scale, policy_iterations num_epochs, value_func_iterations num_value_epochs,
    train_v_iters num_value_epochs, mini_batch num_minibatches, clip_e agent.clip_epsilon, vf_clipped_loss
    agent.value_clip_epsilon, l2_coeff agent.value_l2, clip_range agent.clip_epsilon, clip_range_vf
    agent.value_clip_epsilon, n_epochs num_epochs, update-epochs num_epochs, norm-adv agent.normalize_advantages,
    clip-vloss agent.value_clip_epsilon, clip_eps agent.clip_epsilon, discounting discount, unroll_length
    rollout_length, num_updates_per_batch num_epochs, entropy_cost agent.entropy_coefficient, num_evals
    eval_interval, capture_video render_interval, cuda devices, vf_loss_coefficient agent.value_coefficient
impala: critic_scale value_learning_rate_scale, lam agent.vtrace_lambda
reinforce: critic_scale value_learning_rate_scale, entropy agent.entropy_coefficient
trpo: subtype kind, linesearch_type trust_region.accept_by, cg_damping trust_region.damping, max_kl
    trust_region.max_kl, target_kl trust_region.max_kl, critic_scale optimizer.learning_rate,
    value_learning_rate_scale optimizer.learning_rate, policy_lr policy_optimizer.learning_rate, timesteps_per_batch
    rollout_length, value_func_iterations num_value_epochs, backtrack_iters trust_region.max_trials
dqn: update_target_weights_interval target_update_interval, double_dqn agent.double, dueling_dqn
    agent.network.heads.dueling, alpha replay.recency, initial_eps agent.epsilon.start, end_eps agent.epsilon.end,
    decay_steps agent.epsilon.share, exploration_fraction agent.epsilon.share, exploration_final_eps
    agent.epsilon.end, start-e agent.epsilon.start, stochastic agent.max_final_epsilon, buffer_size replay_capacity,
    fill_buffer learning_starts, critic_scale optimizer.learning_rate, target_network_frequency
    target_update_interval
sac: alpha agent.temperature, autotune agent.adaptive_temperature, critic_scale critic_optimizer.learning_rate, q_lr
    critic_optimizer.learning_rate, policy_lr actor_optimizer.learning_rate, gradient_steps updates_per_iteration,
    max_replay_size replay_capacity, min_replay_size learning_starts, grad_updates_per_step updates_per_iteration,
    start_training_after_x_steps learning_starts, gd_steps_per_step updates_per_iteration, polyak tau, ent_coef
    agent.temperature
td3: policy_noise agent.target_noise, noise_clip agent.target_noise_bound, exploration_noise agent.noise.scale,
    ou_theta agent.noise.theta, policy_frequency policy_delay, warmup_len learning_starts
ec/openes: sigma optimizer.noise_std_schedule, popsize optimizer.pop_size, lr optimizer.lr_schedule
ec/cmaes: sigma_init optimizer.initial_std
"""
ELSEWHERE = [
    (agent.strip(), *pair.split())
    for agent, pairs in (line.split(": ", 1) for line in re.sub(r"\n +", " ", PAIRS).strip().splitlines())
    for pair in pairs.rstrip(",").split(",")
]


@pytest.mark.parametrize(("agent", "theirs", "ours"), ELSEWHERE)
def test_words_of_others_are_answered_by_ours(agent: str, theirs: str, ours: str) -> None:
    keys = keys_of(agent)
    assert theirs not in keys, "it is a setting of this agent"
    assert names_for_synonym(theirs, keys) == [ours]
    assert ours in keys


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("da3c", "a2c"),
        ("dppo", "ppo"),
        ("policy-gradient", "reinforce"),
        ("policy_gradient", "reinforce"),
        ("A3C", "a2c"),
    ]
    + [("openai-es", "ec/openes"), ("cma-es", "ec/cmaes"), ("pbt", "meta/pbt"), ("c51", "rainbow"), ("erl", "erl/erl")],
)
def test_agents_of_others_are_answered_by_ours(theirs: str, ours: str) -> None:
    assert names_for_synonym(theirs, AGENTS) == [ours]


@pytest.mark.parametrize(
    ("theirs", "ours"), [("openai-gym", "gymnasium"), ("lab", "deepmind-lab"), ("gym-doom", "vizdoom")]
)
def test_simulators_of_others_are_answered_by_ours(theirs: str, ours: str) -> None:
    assert names_for_synonym(theirs, KINDS) == [ours]


def test_what_has_no_counterpart_is_answered_by_what_to_do() -> None:
    assert "jax.disable_jit()" in did_you_mean("enable_jit", PPO)
    assert "devices=auto" in did_you_mean("enable_multi_devices", PPO)
    refuse_arguments("build", {})
    with raises_naming(TypeError, "build()", "argument 'x'"):
        refuse_arguments("build", ["x"])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"type": "dense", "units": 64, "activation": "relu"}, "{dense: {size: 64, activation: relu}}"),
        ({"type": "Flatten"}, "flatten"),
        ({"type": "conv2d", "out_channels": 4, "kernel_size": 3}, "{conv: {filters: 4, size: 3}}"),
    ],
)
def test_layers_with_a_type_are_written_by_their_kind(theirs: dict, ours: str) -> None:
    assert convert_layer(theirs) == ours
    assert "{dense: 64}" in convert_layer({"type": "attention"})
