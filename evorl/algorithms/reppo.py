"""Relative entropy pathwise policy optimization (REPPO, Voelcker et al. 2025, https://arxiv.org/abs/2507.11019).

The policy follows the pathwise gradient through an action-value critic, which learns distributions of soft TD(lambda)
returns and, as an auxiliary task, predicts the next embedding and reward. Two adaptive multipliers keep the entropy
near a target and bound the KL divergence from the policy that collected the trajectory.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from evorl.agent import AgentState, action_distribution
from evorl.agents.critic_ensemble import CriticEnsembleAgent
from evorl.agents.observations import observation_ndim, preprocess
from evorl.agents.part_settings import PredictiveCriticSettings, differing_torsos, pop_deviation_bounds
from evorl.config.values import checked_num_atoms
from evorl.distributions import ActionDistribution
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.heads import PolicyNetwork
from evorl.networks.q_networks import PredictiveQNetwork
from evorl.networks.torsos import build_layers
from evorl.ops import collectives
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.random import draw, unrolled
from evorl.ops.returns import lambda_return
from evorl.ops.trees import means
from evorl.ops.value_distributions import hl_gauss
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field
from evorl.workflows.on_policy import Begin, OnPolicyWorkflow, ScheduleStep, scan_updates

INITIAL_SHARPNESS = 40.0  # of the critic's initial distribution, which peaks at a return of 0


class REPPOAgent(CriticEnsembleAgent):
    """A stochastic policy, one distributional critic, and the multipliers of entropy and KL divergence.

    Attributes:
        distribution: distribution of Box actions: normal, squashed by tanh in bounded dimensions.
        temperature: initial entropy coefficient alpha.
        target_entropy_scale: the target entropy is minus this number per action dimension.
        multiplier: initial weight mu of the KL divergence.
        kl_bound: upper bound, in nats, of the KL divergence from the policy that collected the trajectory.
        prediction_weight: weight of the auxiliary loss, which predicts the next embedding and reward.
        support_low: lowest return in the support of the distributions; no discounted return should be below it.
        support_high: highest return in the support of the distributions; no discounted return should exceed it.
    """

    distribution: ActionDistribution = pytree_field(static=True)
    temperature: Annotated[float, Within("(0, inf)")] = 0.01
    target_entropy_scale: float = 0.5
    multiplier: Annotated[float, Within("(0, inf)")] = 0.01
    kl_bound: Annotated[float, Within("(0, inf)")] = 0.1
    prediction_weight: Annotated[float, Within("[0, inf)")] = 1.0
    support_low: float = pytree_field(default=0.0, kw_only=True)
    support_high: float = pytree_field(default=150.0, kw_only=True)

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.BOXES
    improves_policies: ClassVar[bool] = False  # the loss reads the policy that collected the trajectory
    target_names: ClassVar[tuple[str, ...]] = ()
    part_settings: ClassVar[PyTreeNode] = PredictiveCriticSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        options, size = settings.pop("network"), settings.pop("embedding_size")
        distribution = action_distribution(env.action_space, **pop_deviation_bounds(settings))
        ndims = {name: observation_ndim(env.obs_space, settings.get(f"{name}_obs_key")) for name in ("policy", "value")}
        support = [settings.get(name, getattr(cls, name)) for name in ("support_low", "support_high")]
        num_atoms = checked_num_atoms(settings.pop("num_atoms"), "categorical", *support) or 0
        torso, critic_torso = differing_torsos(options, settings.pop("critic_network"))
        heads = critic_torso.clone(layers=build_layers(settings.pop("critic_heads"), "agent.critic_heads"))
        return {
            "policy_network": PolicyNetwork(torso, distribution.num_parameters, ndims["policy"]),
            "critic_network": PredictiveQNetwork(critic_torso, heads, num_atoms, size, ndims["value"]),
            "distribution": distribution,
        }

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        params = super().init_params(obs_space, action_space, key)
        logs = {f"log_{name}": jnp.log(jnp.float32(getattr(self, name))) for name in ("temperature", "multiplier")}
        return params | logs

    def policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        """Return the action distributions for observations ``[..., *observation]``."""
        return self.distribution(self.policy_outputs(agent_state, policy_params, obs))

    def critic(
        self, agent_state: AgentState, params: Params, obs: Observation, actions: Action
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the critic's logits ``[..., M]``, embeddings ``[..., F]`` and predictions ``[..., F + 1]``.

        A constant added to the logits makes the initial distribution peak at a return of 0.
        """
        obs = preprocess(agent_state, obs, self.value_obs_key)
        outputs: Any = self.critic_network.apply(params, obs, actions)
        logits, embeddings, predictions = outputs
        return logits + INITIAL_SHARPNESS * hl_gauss(jnp.zeros(()), self.support), embeddings, predictions

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Return the expected values of the greedy actions, ``[N]``."""
        actions = self.policy(agent_state, params["policy"], obs).mode()
        return self.expected(self.critic(agent_state, params["critic"], obs, actions)[0])

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return sampled actions and, as ``noise``, the standard normal noise of each, both ``[..., A]``."""
        policy = self.policy(agent_state, agent_state.params.policy, sample_batch.obs)
        noise = draw(jax.random.normal, key, policy.loc.shape)
        return policy.transform(noise)[0], PyTreeDict(noise=noise)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return self.policy(agent_state, agent_state.params.policy, sample_batch.obs).mode(), PyTreeDict()

    def batch_with_targets(
        self,
        agent_state: AgentState,
        trajectory: SampleBatch,
        discount: jax.Array | float,
        td_lambda: jax.Array | float,
        keys: Key,
    ) -> SampleBatch:
        """Return the inputs of the losses for a trajectory ``[T, B]``, with soft TD(lambda) returns ``extras.targets``.

        ``G_t = r_t + discount (1 - termination_t) [lambda G_{t+1} + (1 - lambda) Q(s_{t+1}, a') - alpha log pi(a')]``.
        ``a'`` is chosen at the true successor, even if truncated, with the noise of ``a_t`` instead of new noise, as in
        the authors' code. Lambda is 0 at episode ends. ``keys``: ``[T, B]``.
        """
        params, extras = agent_state.params, PyTreeDict(sample_keys=keys)
        policy = self.policy(agent_state, params.policy, trajectory.next_obs)
        next_actions, log_prob = policy.transform(trajectory.extras.policy_extras.noise)
        logits, extras.next_embeddings, _ = self.critic(agent_state, params.critic, trajectory.next_obs, next_actions)
        termination = trajectory.extras.env_extras.termination
        costs = discount * (1.0 - termination) * jnp.exp(params.log_temperature) * log_prob
        steps = (trajectory.rewards - costs, self.expected(logits), termination, trajectory.dones)
        extras.targets = lambda_return(*steps, discount, td_lambda)
        extras.old_outputs = self.policy_outputs(agent_state, params.policy, trajectory.obs)
        return trajectory.replace(next_obs=None, extras=extras)

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the mean of cross-entropies to HL-Gauss targets plus weighted errors of predictions, and metrics.

        Errors of predictions are squared; at the last step of an episode their weight is 0.
        """
        logits, _, predictions = self.critic(agent_state, critic_params, batch.obs, batch.actions)
        returns = batch.extras.targets
        losses = optax.softmax_cross_entropy(logits, hl_gauss(returns, self.support))
        outcomes = jnp.concatenate([batch.extras.next_embeddings, batch.rewards[:, None]], axis=-1)
        prediction_losses = (1.0 - batch.dones) * jnp.square(predictions - outcomes).mean(axis=-1)
        is_outside = (returns < self.support_low) | (returns > self.support_high)
        loss = (losses + self.prediction_weight * prediction_losses).mean()
        return loss, PyTreeDict(
            critic_loss=losses.mean(),
            prediction_loss=prediction_losses.mean(),
            q_value=self.expected(logits).mean(),
            outside_support=is_outside.mean(dtype=jnp.float32),
        )

    def actor_loss(
        self, actor_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the loss of policy and multipliers (eq. 7 to 9), with one key per sample.

        The policy loss of a sample is ``alpha log pi - Q`` within the KL bound, and ``mu KL`` beyond it.
        """
        policy = self.policy(agent_state, actor_params.policy, batch.obs)
        actions, log_prob = policy.sample_and_log_prob(keys)
        values = self.expected(self.critic(agent_state, agent_state.params.critic, batch.obs, actions)[0])
        kl = self.distribution(batch.extras.old_outputs).kl(policy)
        alpha, multiplier = jnp.exp(actor_params.log_temperature), jnp.exp(actor_params.log_multiplier)
        stopped = jax.lax.stop_gradient((alpha, multiplier))
        losses = jnp.where(kl < self.kl_bound, stopped[0] * log_prob - values, stopped[1] * kl)
        target_entropy = -self.target_entropy_scale * self.distribution.size
        excess, surplus = jax.lax.stop_gradient((kl - self.kl_bound, -log_prob - target_entropy))
        loss = (losses + alpha * surplus - multiplier * excess).mean()
        metrics = PyTreeDict(actor_loss=losses.mean(), entropy=-log_prob.mean(), kl=kl.mean())
        return loss, metrics | {"temperature": alpha, "multiplier": multiplier}


class REPPOWorkflow(OnPolicyWorkflow):
    """REPPO: for each minibatch, updates the critic, then the policy and the multipliers.

    ``optimizer`` updates the critic and, with a separate state, policy and multipliers.

    Attributes:
        td_lambda: lambda of the TD(lambda) returns.
        num_epochs: number of passes (epochs) over each trajectory.
        num_minibatches: number of minibatches per epoch.
        schedule_step: schedules of optimizer and loss advance once per trajectory (``environment``) or with every
            gradient step (``update``); in both cases they span the whole training run.
    """

    agent: REPPOAgent
    total_timesteps: float = 1e7
    rollout_length: int = 32
    optimizer: Optimizer = Optimizer(max_grad_norm=0.5)
    td_lambda: Annotated[float, Within("[0, 1]")] = 0.95
    num_epochs: int = 8
    num_minibatches: int = 16
    schedule_step: ScheduleStep = "environment"

    default_num_envs: ClassVar[int] = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_equal_minibatches(self.num_minibatches)

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        params = agent_state.params
        return PyTreeDict(critic=self.optimizer.init(params.critic), actor=self.optimizer.init(_actor(params)))

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Train on minibatches of a trajectory and its targets, with the observation statistics of the rollout."""
        key, sample_key = jax.random.split(key)
        inputs = (self.discount, self.td_lambda, self.step_keys(sample_key))
        batch = self.agent.batch_with_targets(agent_state, trajectory, *inputs)
        batch = collectives.gather_rows(batch, axis=1).flatten()

        def one_minibatch(carry: Any, minibatch: SampleBatch, progress: jax.Array) -> tuple[Any, PyTreeDict]:
            params, opt_state, num_updates = carry
            keys = unrolled(jax.vmap(jax.random.fold_in, (0, None))(minibatch.extras.sample_keys, num_updates))
            step = (self.agent.critic_loss, self.optimizer, params.critic, opt_state.critic)
            critic, critic_opt, losses = gradient_step(*step, agent_state, minibatch, progress=progress)
            state = agent_state.replace(params=params.replace(critic=critic))
            step = (self.agent.actor_loss, self.optimizer, _actor(params), opt_state.actor)
            actor, actor_opt, actor_losses = gradient_step(*step, state, minibatch, keys, progress=progress)
            opt_state = PyTreeDict(critic=critic_opt, actor=actor_opt)
            return (state.params.replace(**actor), opt_state, num_updates + 1), losses | actor_losses

        carry, begin = (agent_state.params, opt_state, jnp.int32(0)), Begin(key, progress)
        (params, opt_state, _), losses = scan_updates(self, one_minibatch, carry, batch, begin)
        return agent_state.replace(params=params), opt_state, means(losses)


def _actor(params: PyTreeDict) -> PyTreeDict:
    return PyTreeDict({name: params[name] for name in ("policy", "log_temperature", "log_multiplier")})
