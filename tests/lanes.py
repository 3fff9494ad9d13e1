"""The two lanes of the test suite: patterns of the tests that run only in the long lane, grouped by reason.

``make test`` runs the short lane: at least one test of every essential feature of each part. ``make test-long`` runs
the rest. A pattern is a regular expression that matches the beginning of a test's id. The comment above a group lists
its tests in the short lane.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterable

LONG: dict[str, tuple[str, ...]] = {
    # Short: PPO, SAC, DQN, neuroevolution, ERL and MAP-Elites. tests/test_configs.py builds every algorithm.
    "further algorithms of a family": (
        r"tests/algorithms/test_(a2c|bro|cemrl|crossq|discor|impala|iql|multi_objective|pbt|pga_me|pqn\w*|r2d2)\.py::",
        r"tests/algorithms/test_(flash_sac|recurrent_sac|reinforce|reppo|rlpd|simba|td3|td3_bc|tqc|trpo)\.py::",
        r"tests/algorithms/test_(soft_updates|td3_noise|soft_actor_critics)\.py::",
        r"tests/workflows/test_(recycling\.py::TestContract::|resets\.py::test_every_off_policy_algorithm\w*\[(?!sac))",
        r"tests/algorithms/test_(action_spaces|dict_observations)\.py::",
        r"tests/algorithms/test_\w+\.py::test_\w+\[.*(pqn|r2d2|recurrent_sac|a2c|impala)",
        r"tests/algorithms/test_mappo\.py::",
        r"tests/algorithms/test_dqn\.py::TestMunchausenContract::",
        r"tests/algorithms/test_ppo_options\.py::Test(Contract|ProbesWithQuantiles)::",
        r"tests/agents/test_episodic_bonus\.py::TestContract::",
        r"tests/algorithms/test_map_elites\.py::Test(Thresholds|DominatedNovelty)::",
        r"tests/ec/test_covariance_emitter\.py::test_the_gate_of_qdax\[(?!imp)",
        r"tests/ec/test_covariance_emitter\.py::test_a_generation\w*\[(?!imp-filter-elites|2imp-mu-thresholds)",
        r"tests/algorithms/test_mf_pbt\.py::TestMultiFrequencyContract::",
        r"tests/workflows/test_quality_diversity\.py::test_\w+\[.*pga_me",
        r"tests/workflows/test_(on_policy|policy_improvement)\.py::test_\w+\[.*(a2c|impala|reinforce|sac)",
        r"tests/workflows/test_replay_settings\.py::test_every_off_policy_agent\w*\[(?!dqn)",
        r"tests/workflows/test_evolution_guided\.py::test_\w+\[cemrl",
        r"tests/agents/test_action_value\.py::test_epsilons_are_drawn",
        r"tests/workflows/test_workflow\.py::test_a_step_is_collect_then_update\[sac",
    ),
    # Short: SAC learns the continuous probes, PPO solves CartPole.
    "learning of a further algorithm, or with memory": (
        r"tests/algorithms/test_\w+\.py::TestProbesWithMemory::",
        r"tests/algorithms/test_ppo\.py::Test(Contract|Agent)With\w+::",
        r"tests/algorithms/test_(?!sac)\w+\.py::(TestProbes::|test_\w+_probe)",
        r"tests/algorithms/test_sac\.py::TestProbes::test_\w+\[discrete",
        r"tests/algorithms/test_cartpole\.py::test_cartpole_is_solved\[(?!ppo)",
        r"tests/algorithms/test_sac\.py::test_pendulum_is_learned",
        r"tests/algorithms/test_action_masks\.py::test_what_is_learned_stays_finite",
        r"tests/agents/test_(intrinsic|actor_critic)\.py::test_(any|every|two|replay)_",
        r"tests/agents/test_intrinsic\.py::test_(a_training_is_resumed|no_key|diayn|a_repeated_step\w*\[(?!rnd-CartPole))",
        r"tests/agents/test_actor_critic\.py::test_\w+\[(dilated|lstm|lru|gtrxl)",
        r"tests/test_rollout\.py::test_memory_is_threaded\w*\[(\w+-2|Fast)",
    ),
    # Short: PPO and SAC train from the command line; invalid values, full disks and documented agents are tested once.
    "start of a further agent, and further values of settings, from the command line": (
        r"tests/cli/test_every_agent\.py::test_an_agent_trains_from_the_command_line\[(?!ppo\]|sac\])",
        r"tests/cli/test_app_agents\.py::test_every_agent",
        r"tests/cli/test_training\.py::test_tuned_settings",
        r"tests/cli/test_app_agents\.py::test_every_pair\w*\[(?!ppo|sac-gymnasium)",
        r"tests/cli/test_plan\.py::test_a_plan_refuses\w*\[arguments[1-9]",
        r"tests/cli/test_main\.py::test_nonsense_is_one_sentence\[arguments[12]\d",
        r"tests/runs/test_spec\.py::test_settings_of_the_run\w*\[(?!seed|trust|title|best_over)",
        r"tests/runs/test_rescue\.py::test_a_disk_that_fails\w*\[(?!(checkpoint|metrics)-28)",
        r"tests/runs/test_rescue\.py::test_a_folder_that_is_gone_ends\w*\[(?!removed)",
        r"tests/test_configs\.py::test_(every_setting_that|a_class_and_what)\w*\[(?!ppo|sac|dqn|ec/openes|erl/erl|qd/map_elites)",
        r"tests/cli/test_completion\.py::test_nothing_but_candidates",
        r"tests/cli/test_overrides\.py::test_no_wrong_value_of_any_setting",
        r"tests/cli/test_plan\.py::test_a_plan_is_of_all\w*\[arguments[1-9]",
    ),
    # Short: gymnax, Gymnasium, the simulators of the tests, and the description of brax's hopper. gymnax's CartPole is
    # tested against the contract of environments.
    "environments of a further library, and the contract for further ones": (
        r"tests/envs/test_(craftax|envpool|envpool_compiled|jaxmarl|jumanji|mjx|navix|pgx|playground|xminigrid)\.py::",
        r"tests/envs/test_(gymnasium_goals|mujoco|mujoco_shapes|mjx_contacts|pettingzoo|dm_control|physics)\.py::",
        r"tests/cli/test_catalogs\.py::test_spaces_are\w*\[(?!gymnax/(CartPole|Pendulum)|cartpole|goal/bit_flip)",
        r"tests/envs/test_brax\.py::(TestHopper|test_(every_environment|backends|nothing_is_printed))",
        r"tests/test_seed_snippets\.py::test_(rollout|evaluator|environment_interaction)",
        r"tests/test_configs\.py::test_an_environment_of_(brax_is_described\[(?!hopper)|gymnax_builds\[(?!cartpole|pendulum|breakout|goal/bit_flip))",
        r"tests/envs/test_gymnax\.py::TestPendulum::",
        r"tests/envs/test_gymnax\.py::test_the_table_of_classes",
        r"tests/envs/test_gymnax\.py::test_(every_environment\w*|observations\w*)\[(?!MountainCar-v0|Catch)",
        r"tests/envs/test_gymnax\.py::test_(one_environment_is_imported|the_plain_import)",
        r"tests/envs/test_vector\.py::TestAgentsOfCopies::",
        r"tests/envs/test_probe_envs\.py::test_value_is\w*\[(?!\w*value_is_reward)",
        r"tests/envs/goals/test_(reacher|bit_flip)\.py::Test",
        r"tests/envs/goals/test_(setting|point_maze)\.py::",
        r"tests/envs/goals/test_setters\.py::test_a_curriculum_is_of_intermediate",
        r"tests/envs/test_env_configs\.py::test_an_environment_is_composed\w*\[(gymnax-\w+-(?!v)|brax-(?!ant))",
        r"tests/envs/test_space\.py::test_samples_are_elements\[(?!Box\(low=-1.0|Discrete|DictSpace)",
        r"tests/envs/test_gymnasium_spaces\.py::test_what_an_agent_does\w*\[(?!Discrete|Tuple|Dict|Box\(-2)",
        r"tests/envs/test_gymnasium_answers\.py::test_processes_refuse",
        r"tests/envs/test_mujoco_runners\.py::test_equals_gymnasium(_with_options|\[(?!hopper))",
        r"tests/envs/test_wrapped_row\.py::test_a_stream\w*\[(?!Masked)",
        r"tests/envs/test_vector\.py::test_a_reset_is_computed\w*\[None",
        r"tests/envs/test_starts\.py::test_environments_of_libraries\[(?!gymnax)",
        r"tests/envs/wrappers/test_encoding\.py::test_every_space_is_read",
        r"tests/envs/wrappers/test_goal\.py::test_what_a_goal_is_worth\w*\[<lambda>1",
        r"tests/envs/goals/test_goal_envs\.py::test_equal_descriptions\w*\[reacher",
        r"tests/algorithms/test_random_agent\.py::test_episodes_of_random\w*\[Pendulum",
        r"tests/envs/wrappers/test_observation\.py::TestStacked",
        r"tests/envs/wrappers/test_skill\.py::TestSkills::",
        r"tests/envs/wrappers/test_randomization\.py::(test_simulators|test_the_field_of|TestFalling::)",
        r"tests/envs/host/test_bridge\.py::test_seeds_side_by_side",
        r"tests/envs/host/test_bridge\.py::test_the_numbers_are_those_of_the_same_environment_in_jax\[(?!ppo-loop)",
        r"tests/envs/host/test_bridge\.py::test_a_faulty_simulator\w*\[callback",
    ),
    # Short: the worker and the supervisor of actors, and one worker of a parameter server, which learns as in training.
    "processes of actors, Ray, several servers": (
        r"tests/actors/test_(ray_pool|process_pool|actor_loop)\.py::",
        r"tests/cli/test_app_run\.py::",
        r"tests/interop/test_batcher_processes\.py::",
        r"tests/parameter_server/test_(delayed_workers|service)\.py::",
        r"tests/test_(launch|launchers|installs|host_runs)\.py::",
    ),
    # Short: OpenES is tested against the contract of optimizers, and each optimizer by its specific tests.
    "contracts and fronts of further optimizers, thousands of generations, and large populations": (
        r"tests/ec/test_safeguards\.py::",
        r"tests/ec/optimizers/test_cma_es\.py::",
        r"tests/ec/optimizers/test_(?!open_es)\w+\.py::Test\w*Contract::",
        r"tests/ec/optimizers/test_open_es\.py::TestUnpairedContract::",
        r"tests/ec/test_evosax\.py::TestContract::test_a_population_is",
        r"tests/ec/test_evosax\.py::test_a_strategy_gets_better",
        r"tests/ec/optimizers/test_rvea\.py::test_it_reaches_a_known_front",
        r"tests/ec/optimizers/test_genetic\.py::test_(sphere_is_solved|children_are)",
        r"tests/ec/optimizers/test_nsga2\.py::test_(hypervolume|individuals_without)",
        r"tests/ec/optimizers/test_breeding\.py::test_no_key_is_used_twice\[(?!NSGA2)",
        r"tests/ec/archives/test_archive\.py::test_(many_archives|equals_do_not|elites_are_drawn|like_a_dict\[(?!9-))",
        r"tests/ec/test_injection\.py::test_(a_fit_solution|samples_from_outside\w*\[(?!openes))",
        r"tests/ec/test_noise\.py::test_devices_share",
    ),
    # Short: Gaussian mutation, uniform crossover, one selection.
    "operators of evolution beyond the first of a kind": (
        r"tests/ec/operators/test_mutation\.py::test_individuals_and_leaves\w*\[(?!gaussian)",
        r"tests/ec/operators/test_crossover\.py::test_pairs_and_leaves\w*\[(?!uniform)",
        r"tests/ec/operators/test_variation\.py::test_stated_share\w*\[(?!gaussian|uniform)",
        r"tests/ec/operators/test_variation\.py::test_(kinds_are|no_key_is_used_twice\[node[1-9])",
        r"tests/ec/operators/test_mutation\.py::test_share_is_changed\w*\[(?!gaussian)",
        r"tests/ec/operators/test_crossover\.py::test_children_hold\w*\[(?!uniform)",
        r"tests/ec/operators/test_parent_selection\.py::test_tournament_by_the_order",
        r"tests/ops/test_selection\.py::test_the_lowest_share\w*\[(?!5-)",
        r"tests/ec/operators/test_pareto\.py::test_distances_and_order\w*\[(?!2)",
    ),
    # Short: the contract for the uniform buffer and for sequences, and the specific tests of each buffer.
    "contract and kinds of further replay buffers": (
        r"tests/replay_buffers/test_(slots|episode|recency|prioritized|latest)\.py::TestContract::",
        r"tests/replay_buffers/test_sequence\.py::TestPrioritizedContract::",
        r"tests/replay_buffers/test_hindsight\.py::test_it_is_what_a_loop_finds\[(?!part of the ring-future)",
        r"tests/replay_buffers/test_hindsight\.py::test_episodes_in_slots",
        r"tests/replay_buffers/test_episode\.py::test_episodes_are_those\w*\[(?!5-|12-0.3)",
        r"tests/interop/test_replay_memory\.py::test_what_is_kept\w*\[(?!UniformReplayBuffer-1-)",
        r"tests/interop/test_replay_memory\.py::test_the_oldest\w*\[(?!Uniform)",
    ),
    # Short: the snippets of the seed documents, except for brax; hooks and figures of the documentation site.
    "every command of a page, notebooks, examples": (
        r"tests/test_(docs|notebooks|relaax_page|first_steps)\.py::",
        r"tests/test_site\.py::test_(no_page|the_search|the_policy)",
        r"tests/examples/",
        r"tests/cli/test_render\.py::test_(of_several_seeds|where_nothing_can_draw)",
    ),
    # Short: independence of devices and seeds for PPO, DQN and MAP-Elites; a population on four devices; a sweep.
    "resumption, memory, devices and seeds of further workflows": (
        r"tests/test_(run_lifecycle|adding_an_algorithm|nested_configs)\.py::",
        r"tests/workflows/test_device_exactness\.py::",
        r"tests/conformance/test_\w+_bite\w*\.py::",
        r"tests/algorithms/test_(erl|sac|neuroevolution)\.py::TestContract::test_(neither_devices|resumed_on_more|no_key)",
        r"tests/workflows/test_replay_settings\.py::TestContract::",
        r"tests/workflows/test_replay_settings\.py::test_(overwritten_at_random|random_episodes_make_room)",
        r"tests/workflows/test_quality_diversity\.py::test_layout_does_not_show",
        r"tests/workflows/test_quality_diversity\.py::test_seeds_side_by_side",
        r"tests/algorithms/test_dqn\.py::TestContract::test_no_key",
        r"tests/algorithms/test_erl\.py::test_learners_learn_side",
        r"tests/test_warm_start\.py::test_one_seed_serves",
        r"tests/evaluators/test_episodes\.py::test_chunks_of",
        r"tests/workflows/test_evolution\.py::test_(memory_is_that|several_seeds|layouts_do_not_show\[(?!4 devices\]))",
        r"tests/workflows/test_compile_contract\.py::test_no_copy_of_the_replay_buffer\[(?!one device)",
        r"tests/workflows/test_evolution_guided\.py::test_(devices_do_not_show|a_seed_of_several|the_buffer_holds)",
        r"tests/workflows/test_side_by_side\.py::test_(devices_share|a_single_row|a_row_)",
        r"tests/episodes/test_recording_options\.py::test_devices_do_not_show",
        r"tests/evaluators/test_population_evaluator\.py::test_layouts_do_not_show\[(?!2)",
        r"tests/execution/test_multiprocess\.py::test_one_of_several",
        r"tests/execution/test_recorded_steps\.py::test_what_is_loaded_is_what_was_recorded\[(?!plain)",
        r"tests/execution/test_recorded_steps\.py::test_(episodes_of_slots|goals_are_saved|saved_and_loaded)",
    ),
    # Short: one experiment of each kind of algorithm is built, and every agent once.
    "experiments and combinations beyond the first of a kind": (
        r"tests/test_configs\.py::test_an_experiment_builds\[(?!ppo/cartpole\]|sac/pendulum\]|dqn/cartpole\])",
        r"tests/test_configs\.py::test_an_agent_builds\[cartpole-(crossq|ddpg|fast_td3|iql|td3|td3_bc|tqc|pqn_cont|reppo|erl/|qd/pga_me)",
        r"tests/test_configs\.py::test_an_agent_builds\[pendulum-(a2c|discor|ec/|impala|meta|ppo|pqn(?!_cont)|qd/map|r2d2|rainbow|random)",
        r"tests/test_configs\.py::test_an_agent_builds\[pendulum-recurrent",
        r"tests/test_configs\.py::test_an_agent_builds\[pendulum-(reinforce|trpo|dqn)",
        r"tests/workflows/test_on_policy\.py::test_the_value_function_learns\w*\[False",
        r"tests/workflows/test_on_policy\.py::test_statistics_count",
        r"tests/workflows/test_nested_learner\.py::test_the_first_block",
        r"tests/workflows/test_evolution\.py::test_a_(generation_without|return_that_is_no)",
        r"tests/workflows/test_quality_diversity\.py::test_a_vector_is",
        r"tests/workflows/test_replay_settings\.py::test_newer_steps",
        r"tests/algorithms/test_dqn\.py::test_(the_loss_of_categories|a_noisy_network|the_slow_network|dueling)",
        r"tests/execution/test_env_faults\.py::test_finite_numbers",
        r"tests/networks/test_recurrent\.py::test_unrolling\w*\[(?!GRU)",
        r"tests/ops/test_natural_gradient\.py::test_hessian_product\w*\[categorical",
        r"tests/ops/test_optimization\.py::test_(any_optimizer|it_steps_as)\w*\[(?!adam\]|sgd|rmsprop)",
        r"tests/algorithms/test_erl\.py::test_(every_combination|critics_with_running|injection_waits|several_learners)",
        r"tests/algorithms/test_neuroevolution\.py::test_(continuous|discrete)_actions",
        r"tests/algorithms/test_ppo\.py::test_(a_further_pass|the_two_networks|the_loss_has_the_value)",
        r"tests/algorithms/test_map_elites\.py::test_the_best_walk\w*\[(?!GridArchive)",
        r"tests/workflows/test_evolution_guided\.py::test_statistics_of_observations",
        r"tests/workflows/test_evolution\.py::test_individuals_play_with_normalized",
        r"tests/workflows/test_learner_emitter\.py::test_any_learner_lends_its_gradients",
        r"tests/workflows/test_nested_learner\.py::test_any_number_of_updates",
        r"tests/workflows/test_off_policy\.py::test_(learning_from_transitions_over|updates_may_be|the_oldest|priorities_follow)",
        r"tests/workflows/test_replay_settings\.py::test_hindsight_solves",
        r"tests/workflows/test_on_policy\.py::test_schedules_may_advance",
        r"tests/execution/test_env_faults\.py::test_(a_generation|settings_side|a_population)",
        r"tests/execution/test_env_faults\.py::test_a_bad_number\w*\[(?!reward-nan-ppo)",
        r"tests/networks/test_kernel_activations\.py::test_ppo_learns",
        r"tests/networks/test_image_sides\.py::",
        r"tests/networks/test_convolution\.py::test_windows_of_any_size\w*\[(?!8-4-12-same)",
        r"tests/ops/test_exploration\.py::test_the_scale_of_noise",
        r"tests/test_gpu_programs\.py::test_an_experiment\[",
        r"tests/test_gpu_programs\.py::test_a_family_of_workflows\[(?!ppo-C|sac|neuroevolution)",
        r"tests/test_gpu_programs\.py::test_a_further_agent\[(?!random|ec/cmaes|ec/nsga2)",
        r"tests/test_gpu_programs\.py::test_a_rollout_in_an_environment",
    ),
    # Short: the first of each kind that requires a compiled program.
    "further sizes, shapes and modes": (
        r"tests/algorithms/test_action_masks\.py::test_(only_allowed\w*\[(?!dqn|ppo)|a_run_is_never\w*\[dqn)",
        r"tests/cli/test_(evaluation\.py::test_a_resumed_run|watch\.py::test_it_says_where\w*\[15)",
        r"tests/ec/test_noise\.py::test_sums_do_not_show\w*\[(?!each-45|mirrored-45)",
        r"tests/ec/optimizers/test_rvea\.py::test_individuals_without",
        r"tests/envs/wrappers/test_action\.py::test_repeated_actions\w*\[(?!10-3)",
        r"tests/envs/wrappers/test_reward\.py::test_transforms\w*\[(?!sign)",
        r"tests/execution/test_first_update\.py::test_updates_are_counted\w*\[(?!0-1\]|37-3\])",
        r"tests/execution/test_recorded_steps\.py::test_statistics",
        r"tests/execution/test_runtime\.py::test_a_fresh_process\w*\[auto",
        r"tests/interop/test_host_agent\.py::test_random_actions\w*\[(?!None-Discrete)",
        r"tests/networks/test_(curiosity\.py::test_the_curiosity|heads\.py::test_pixels_enter)",
        r"tests/networks/test_kernel_activations\.py::test_every_agent\w*\[(?!ppo)",
        r"tests/networks/test_virtual_batch\.py::test_(folded_weights\w*\[conv|sums_have\w*\[residual)",
        r"tests/ops/test_natural_gradient\.py::test_(devices_share|the_hessian\w*\[categorical)",
        r"tests/ops/test_value_distributions\.py::test_projection\w*\[-300",
        r"tests/parameter_server/test_update_rules\.py::test_one_worker\w*\[delay",
        r"tests/recorders/test_projection_recorder\.py::test_one_picture\w*\[(?!goal-dimensions1)",
        r"tests/replay_buffers/test_n_step\.py::test_every_stored\w*\[(?!3-)",
        r"tests/runs/test_rescue\.py::test_a_folder_that_is_gone_at\w*\[(?!removed\])",
        r"tests/serving/test_batched_inference\.py::test_nobody_sees\w*\[dqn-exploiting",
    ),
    # Short: PPO is served, policies are exported as page, ONNX and server, a sweep is trained.
    "packages that are missing, broken clients, other processes, sweeps of every kind": (
        r"tests/test_extras\.py::",
        r"tests/recorders/test_wandb_recorder\.py::",
        r"tests/serving/test_(abuse|pong|remote_run|pictures)\.py::",
        r"tests/serving/test_training_server\.py::test_without_lag\w*\[gru",
        r"tests/serving/test_batched_inference\.py::test_nobody_sees\w*\[(?!dqn)",
        r"tests/serving/test_batched_inference\.py::test_what_is_recorded\w*\[(?!ppo-with)",
        r"tests/serving/test_training_server\.py::test_a_(batch_is_what|cut_is)\w*\[dqn",
        r"tests/serving/test_client_js\.py::test_errors_in",
        r"tests/rendering/test_animation\.py::test_frame_k",
        r"tests/recorders/test_video_recorder\.py::test_what_draws",
        r"tests/export/test_artifacts\.py::test_onnx_does_the_same\[(?!ppo_normalised|choices)",
        r"tests/export/test_exported_policy\.py::test_a_file_acts_as_its_policy\[\w+-jax",
        r"tests/export/test_artifacts\.py::test_a_process_without_evorl\w*\[(?!onnx)",
        r"tests/export/test_html_file\.py::test_the_policy_in_the_page\w*\[(?!masked)",
        r"tests/parameter_server/test_training\.py::test_(a_training_outlives|simulators_come|a_worker|deltas_over|several_gradient)",
        r"tests/sweeps/test_(search|capacity)\.py::",
        r"tests/cli/test_(python_api|proposed_lines)\.py::",
        r"tests/cli/test_arguments\.py::test_(a_path|what_is_quoted|a_f(ile|older)|every_setting)",
        r"tests/training/test_preparation\.py::test_(a_value|jobs|a_failed|a_recorder)",
        r"tests/parameter_server/test_update_rules\.py::test_the_mean_of_four",
        r"tests/sweeps/test_sweep\.py::test_(one_program|parts_and_halving|the_best_is_a_run|a_stopped_sweep|a_part)",
        r"tests/cli/test_main\.py::test_a_population_of_another_agent",
        r"tests/apps/test_wheel\.py::test_a_simulator_names",
        r"tests/apps/(files/test_bandit_app|test_app_text|test_supervision)\.py::",
        r"tests/benchmarks/",
    ),
    # Short: none; make check runs the rules of architecture, of foreign code and of English.
    "static checks of sources and pages": (r"tests/test_(architecture|code_sinks|house|plain_english)\.py::",),
}

_PATTERNS = [(re.compile(pattern), reason) for reason, patterns in LONG.items() for pattern in patterns]


def reason_for_long(test_id: str) -> str | None:
    """Return why a test runs only in the long lane; ``None`` if it is in the short one."""
    return next((reason for pattern, reason in _PATTERNS if pattern.match(test_id)), None)


class Part:
    """A part of the suite: each file is in one of ``count`` parts.

    Args:
        text: the number of the part, from 1, and of all parts, such as ``2/3``.

    Raises:
        ArgumentTypeError: the text has another form, or names no part.
    """

    def __init__(self, text: str) -> None:
        written = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        if written is None or int(written[1]) > int(written[2]):
            raise argparse.ArgumentTypeError(
                f"a part is its number and the number of parts, such as 2/3, got {text!r}."
            )
        self.number, self.count = int(written[1]), int(written[2])

    def __contains__(self, path: str) -> bool:
        return zlib.crc32(path.encode()) % self.count == self.number - 1


def unused_patterns(test_ids: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the tests: renamed or removed ones."""
    ids = list(test_ids)
    return [pattern.pattern for pattern, _ in _PATTERNS if not any(map(pattern.match, ids))]
