"""PPO in one file, for discrete actions; one environment or many (`num_envs`).

Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347) with generalised advantage
estimation (Schulman et al. 2015, https://arxiv.org/abs/1506.02438), in the manner of CleanRL's ppo.py. Run it with

    dsec run plans/cartpole_ppo.yaml

The runtime calls `step` for every step, and `learn` once for every batch of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import dsec


def layer(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain, generator=generator)
    nn.init.zeros_(made.bias)
    return made


def network(inputs: int, hidden: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Sequential:
    return nn.Sequential(
        layer(inputs, hidden, 2**0.5, generator),
        nn.Tanh(),
        layer(hidden, hidden, 2**0.5, generator),
        nn.Tanh(),
        layer(hidden, outputs, gain, generator),
    )


class PPO(dsec.Agent):
    vectorized = True

    def __init__(self, session_config: Mapping[str, Any]) -> None:
        super().__init__(session_config)
        # Hyperparameters come from `with:` of the agent in the plan.
        self.lr = session_config.get("lr", 2.5e-4)
        self.anneal_updates = session_config.get("anneal_updates", 0)  # updates until lr is least; 0 keeps it
        self.gamma = session_config.get("gamma", 0.99)
        self.gae_lambda = session_config.get("gae_lambda", 0.95)
        self.epochs = session_config.get("epochs", 4)
        self.minibatch = session_config.get("minibatch", 64)
        self.clip = session_config.get("clip", 0.2)
        self.entropy_coef = session_config.get("entropy_coef", 0.01)
        self.value_coef = session_config.get("value_coef", 0.5)
        self.max_grad_norm = session_config.get("max_grad_norm", 0.5)
        hidden = session_config.get("hidden", 64)

        self.evaluates = session_config["mode"] == "evaluate"
        self.device = session_config["device"]
        inputs = int(np.prod(session_config["observation_space"].shape))
        actions = int(session_config["action_space"].n)
        generator = session_config["torch_generator"]
        self.actor = network(inputs, hidden, actions, 0.01, generator).to(self.device)
        self.critic = network(inputs, hidden, 1, 1.0, generator).to(self.device)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.lr, eps=1e-5)
        self.updates = 0

    # Everything that changes while it lives; its stream `self.rng` is kept by the runtime.

    def state_dict(self) -> dict[str, Any]:
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]

    @torch.no_grad()
    def step(self, observation: np.ndarray) -> dict[str, Any]:
        seen = self.tensor(observation).flatten(1 if self.session_config["num_envs"] else 0)
        logits = self.actor(seen)
        if self.evaluates:
            return {"action": logits.argmax(-1).cpu().numpy()}
        log_probs = logits.log_softmax(-1).cpu().numpy()
        # Gumbel's trick: the greatest of logits plus such noise is a draw from the softmax.
        noise = -np.log(self.rng.standard_exponential(log_probs.shape, np.float32))
        action = (log_probs + noise).argmax(-1)
        log_prob = np.take_along_axis(log_probs, action[..., None], -1)[..., 0]
        value = self.critic(seen)[..., 0].cpu().numpy()
        return {"action": action, "extras": {"log_prob": log_prob, "value": value}}

    def learn(self, batch: Mapping[str, Any] | list[Mapping[str, Any]]) -> dict[str, float]:
        batches = batch if isinstance(batch, list) else [batch]
        parts = [self.experience(one) for one in batches]
        observations, actions, log_probs, advantages, returns = (
            torch.cat(columns) for columns in zip(*parts, strict=True)
        )
        if self.anneal_updates:
            left = max(0.05, 1.0 - self.updates / self.anneal_updates)
            self.optimizer.param_groups[0]["lr"] = self.lr * left
        self.updates += 1
        metrics = {}
        for _ in range(self.epochs):
            order = torch.from_numpy(self.rng.permutation(len(actions)))
            for chosen in order.split(self.minibatch):
                metrics = self.update(
                    observations[chosen], actions[chosen], log_probs[chosen], advantages[chosen], returns[chosen]
                )
        return {name: value.item() for name, value in metrics.items()}

    def update(self, observations, actions, log_probs, advantages, returns) -> dict[str, torch.Tensor]:
        policy = Categorical(logits=self.actor(observations), validate_args=False)
        log_ratio = policy.log_prob(actions) - log_probs
        ratio = log_ratio.exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        value_loss = 0.5 * (self.critic(observations)[:, 0] - returns).square().mean()
        entropy = policy.entropy().mean()
        loss = policy_loss + self.value_coef * value_loss - self.entropy_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()
        approx_kl = ((ratio - 1) - log_ratio).mean()
        return {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "approx_kl": approx_kl}

    @torch.no_grad()
    def experience(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Observations, actions, log-probabilities, advantages and returns, one row for each step and environment."""
        rewards = batch["rewards"]
        steps, envs = rewards.shape[0], rewards.shape[1] if rewards.ndim == 2 else 1
        per_step = (steps, envs)
        values = batch["extras"]["value"].reshape(per_step)
        terminated = batch["terminated"].reshape(per_step)
        ended = terminated | batch["truncated"].reshape(per_step)

        # The value after each step: of the next observation, of the final one where the episode was cut off, else 0.
        after = np.empty(per_step, np.float32)
        after[:-1] = values[1:]
        after[-1] = self.values(batch["last_observation"], envs)
        final = batch["final_observations"]
        if len(final["row"]):
            after[final["row"], final["env"] if "env" in final else 0] = self.values(
                final["observation"], len(final["row"])
            )
        after[terminated] = 0.0

        deltas = rewards.reshape(per_step).astype(np.float32) + self.gamma * after - values
        advantages = np.empty(per_step, np.float32)
        running = np.zeros(envs, np.float32)
        for step in reversed(range(steps)):
            running = deltas[step] + self.gamma * self.gae_lambda * ~ended[step] * running
            advantages[step] = running
        rows = steps * envs
        return (
            self.tensor(batch["observations"]).reshape(rows, -1),
            self.tensor(batch["actions"]).reshape(rows),
            self.tensor(batch["extras"]["log_prob"]).reshape(rows),
            self.tensor(advantages).reshape(rows),
            self.tensor(advantages + values).reshape(rows),
        )

    def values(self, observations: np.ndarray, count: int) -> np.ndarray:
        return self.critic(self.tensor(observations).reshape(count, -1))[:, 0].cpu().numpy()

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)
