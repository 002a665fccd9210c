"""PPO in one file, for discrete actions; one environment or many (`num_envs`).

Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347) with generalised advantage
estimation (Schulman et al. 2015, https://arxiv.org/abs/1506.02438), in the manner of CleanRL's ppo.py. Run it with

    dsec run plans/cartpole_ppo.yaml

It learns with torch and acts with numpy: two tiny nets take 20 us in numpy and five times that in torch, and a rollout
is hardly anything else. So `step` uses plain copies of the weights, renewed whenever the nets change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import dsec


def network(sizes: list[int], last_gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with tanh between them; orthogonal weights from the agent's own stream, not torch's global one."""
    layers: list[nn.Module] = []
    for index in range(len(sizes) - 1):
        layer = nn.utils.skip_init(nn.Linear, sizes[index], sizes[index + 1])
        last = index == len(sizes) - 2
        nn.init.orthogonal_(layer.weight, last_gain if last else 2**0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, nn.Tanh()]
    return nn.Sequential(*layers)


def weights(net: nn.Sequential) -> list[np.ndarray]:
    """Matrix (in, out) and bias (out,) of each layer, in turn."""
    return [parameter.detach().cpu().numpy().T.copy() for parameter in net.parameters()]


def forward(weights: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """What the net with these weights computes: float32 (rows, outputs)."""
    for at in range(0, len(weights) - 2, 2):
        rows = np.tanh(rows @ weights[at] + weights[at + 1])
    return rows @ weights[-2] + weights[-1]


class PPO(dsec.Agent):
    vectorized = True

    def __init__(self, session_config: Mapping[str, Any]) -> None:
        super().__init__(session_config)
        # Hyperparameters come from `with:` of the agent in the plan.
        self.lr = session_config.get("lr", 1e-3)
        self.anneal_updates = session_config.get("anneal_updates", 0)  # updates until lr is least; 0 keeps it
        self.gamma = session_config.get("gamma", 0.99)
        self.gae_lambda = session_config.get("gae_lambda", 0.95)
        self.epochs = session_config.get("epochs", 10)
        self.minibatch = session_config.get("minibatch", 64)
        self.clip = session_config.get("clip", 0.2)
        self.entropy_coef = session_config.get("entropy_coef", 0.0)
        self.value_coef = session_config.get("value_coef", 0.5)
        self.max_grad_norm = session_config.get("max_grad_norm", 0.5)
        hidden = session_config.get("hidden", 64)

        self.evaluates = session_config["mode"] == "evaluate"
        self.device = session_config["device"]
        self.shape = tuple(session_config["observation_space"].shape)
        self.inputs = int(np.prod(self.shape))
        self.start = int(session_config["action_space"].start)
        actions = int(session_config["action_space"].n)
        generator = session_config["torch_generator"]
        self.actor = network([self.inputs, hidden, hidden, actions], 0.01, generator).to(self.device)
        self.critic = network([self.inputs, hidden, hidden, 1], 1.0, generator).to(self.device)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.lr, eps=1e-5, fused=True)
        self.updates = 0
        self.renew()

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
        self.renew()

    def renew(self) -> None:
        self.acting, self.judging = weights(self.actor), weights(self.critic)

    def step(self, observation: np.ndarray) -> dict[str, Any]:
        rows = np.asarray(observation, np.float32).reshape(-1, self.inputs)
        logits = forward(self.acting, rows)
        logits -= logits.max(1, keepdims=True)
        # Gumbel's trick: the greatest of logits plus such noise is a draw from the softmax.
        action = (logits if self.evaluates else logits + self.rng.gumbel(size=logits.shape)).argmax(1)
        log_prob = logits[np.arange(len(rows)), action] - np.log(np.exp(logits).sum(1))
        value = forward(self.judging, rows)[:, 0]
        action += self.start
        if np.shape(observation) == self.shape:
            return {"action": int(action[0]), "extras": {"log_prob": log_prob[0], "value": value[0]}}
        return {"action": action, "extras": {"log_prob": log_prob, "value": value}}

    def learn(self, batch: Mapping[str, Any] | list[Mapping[str, Any]]) -> dict[str, float]:
        batches = [batch] if isinstance(batch, Mapping) else batch
        data = [torch.cat(columns).to(self.device) for columns in zip(*map(self.experience, batches), strict=True)]
        if self.anneal_updates:
            left = max(0.05, 1.0 - self.updates / self.anneal_updates)
            self.optimizer.param_groups[0]["lr"] = self.lr * left
        history = []
        for _ in range(self.epochs):
            order = torch.from_numpy(self.rng.permutation(len(data[0]))).to(self.device)
            for chosen in order.split(self.minibatch):
                history.append(self.update(*(column[chosen] for column in data)))
        self.updates += 1
        self.renew()
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
        return dict(zip(names, torch.stack(history).mean(0).tolist(), strict=True))

    def update(
        self,
        observations: torch.Tensor,
        actions: torch.Tensor,
        log_probs: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
    ) -> torch.Tensor:
        """One step of the optimizer on one minibatch; gives the metrics that `learn` names."""
        new_log_probs = self.actor(observations).log_softmax(1)
        log_ratio = new_log_probs.gather(1, actions[:, None])[:, 0] - log_probs
        ratio = log_ratio.exp()
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        value_loss = 0.5 * (self.critic(observations)[:, 0] - returns).square().mean()
        entropy = -(new_log_probs.exp() * new_log_probs).sum(1).mean()
        loss = policy_loss + self.value_coef * value_loss - self.entropy_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()
        approx_kl = (ratio - 1 - log_ratio).mean()  # http://joschu.net/blog/kl-approx.html
        clip_fraction = (ratio != clipped).float().mean()
        return torch.stack([policy_loss, value_loss, entropy, approx_kl, clip_fraction]).detach()

    def experience(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Observations, actions, log-probabilities, advantages and returns, one row for each step and environment."""
        advantages = self.advantages(batch)
        returns = advantages + batch["extras"]["value"]
        observations = torch.tensor(batch["observations"], dtype=torch.float32).reshape(-1, self.inputs)
        actions = torch.tensor(batch["actions"], dtype=torch.int64) - self.start
        floats = (torch.tensor(it, dtype=torch.float32) for it in (batch["extras"]["log_prob"], advantages, returns))
        return (observations, actions.reshape(-1), *(column.reshape(-1) for column in floats))

    def advantages(self, batch: Mapping[str, Any]) -> np.ndarray:
        """Generalised advantage estimation: float64 (steps, [num_envs])."""
        values, final = batch["extras"]["value"].astype(np.float64), batch["final_observations"]
        # The value after each step: of the next observation, of the final one where the episode was cut off, else 0.
        after = np.concatenate([values[1:], self.values(batch["last_observation"], values.shape[1:])[None]])
        ends = (final["row"], final["env"]) if "env" in final else (final["row"],)
        after[ends] = self.values(final["observation"], final["row"].shape)
        after[batch["terminated"]] = 0.0
        ended = batch["terminated"] | batch["truncated"]
        deltas = batch["rewards"] + self.gamma * after - values
        advantages, running = np.empty_like(deltas), np.zeros(deltas.shape[1:])
        for step in reversed(range(len(deltas))):
            running = deltas[step] + self.gamma * self.gae_lambda * ~ended[step] * running
            advantages[step] = running
        return advantages

    def values(self, observations: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        rows = np.asarray(observations, np.float32).reshape(-1, self.inputs)
        return forward(self.judging, rows)[:, 0].reshape(shape)
