"""PPO for discrete actions, the whole algorithm in one file.

It acts with numpy and learns with torch. Choosing an action by two tiny nets takes 20 us in numpy and several times
that in torch, and a rollout is almost nothing else; so `step` uses plain copies of the weights, which are renewed
whenever the nets change: after `learn` and after `load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Hyperparameters:
    """What the agent's ``with`` may say."""

    lr: float = 1e-3
    final_lr: float = 0.1
    """What is left of `lr` after `anneal_iterations`, as a fraction."""
    anneal_iterations: int = 0
    """Calls of `learn` over which the learning rate falls linearly; 0 keeps it constant."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    epochs: int = 10
    minibatch: int = 64
    clip: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden: int = 64
    """Width of the two hidden layers of each net."""

    @classmethod
    def of(cls, session_config: Mapping[str, Any]) -> Hyperparameters:
        return cls(**{it.name: session_config[it.name] for it in fields(cls) if it.name in session_config})


class PPO:
    """Proximal policy optimisation (Schulman et al. 2017) with separate nets for policy and value.

    Observations are arrays of any shape, flattened; actions are those of gymnasium's ``Discrete``.
    """

    vectorized = True  # step() takes (num_envs, ...) as well as a single observation

    def __init__(self, session_config: Mapping[str, Any]) -> None:
        self.hyper = hyper = Hyperparameters.of(session_config)
        self.device = torch.device(session_config["device"])
        self.rng: np.random.Generator = session_config["rng"]
        self.greedy = session_config["mode"] == "evaluate"
        self.shape = tuple(session_config["observation_space"].shape)
        self.size = int(np.prod(self.shape))
        self.first_action = int(session_config["action_space"].start)
        actions = int(session_config["action_space"].n)
        generator = session_config["torch_generator"]
        actor = _net([self.size, hyper.hidden, hyper.hidden, actions], 0.01, generator)
        critic = _net([self.size, hyper.hidden, hyper.hidden, 1], 1.0, generator)
        self.nets = nn.ModuleDict({"actor": actor, "critic": critic}).to(self.device)
        self.optimizer = torch.optim.Adam(self.nets.parameters(), lr=hyper.lr, eps=1e-5, fused=True)
        self.updates = 0  # calls of learn() so far
        self._renew()

    def step(self, observation: np.ndarray) -> dict[str, Any]:
        """Draw an action, in mode ``evaluate`` take the likeliest; extras are what `learn` needs to know of it."""
        rows = np.asarray(observation, np.float32).reshape(-1, self.size)
        logits = _forward(self.acting["actor"], rows)
        # The greatest of logits plus Gumbel noise is distributed as softmax(logits).
        actions = (logits if self.greedy else logits + self.rng.gumbel(size=logits.shape)).argmax(1)
        logits -= logits.max(1, keepdims=True)
        log_prob = logits[np.arange(len(rows)), actions] - np.log(np.exp(logits).sum(1))
        value = _forward(self.acting["critic"], rows)[:, 0]
        actions += self.first_action
        if np.shape(observation) == self.shape:
            return {"action": int(actions[0]), "extras": {"log_prob": log_prob[0], "value": value[0]}}
        return {"action": actions, "extras": {"log_prob": log_prob, "value": value}}

    def on_reward(self, reward: Any, done: Any, info: Any) -> None:
        """The batch holds the rewards."""

    def learn(self, batch: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Improve policy and value function on what was collected: one batch, or several that were gathered."""
        batches = [batch] if isinstance(batch, Mapping) else batch
        hyper, data = self.hyper, self._samples(batches)
        lr = self._anneal()
        history = []
        for _ in range(hyper.epochs):
            for chosen in self._minibatches(len(data["actions"])):
                loss, metrics = self._loss({name: values[chosen] for name, values in data.items()})
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.nets.parameters(), hyper.max_grad_norm)
                self.optimizer.step()
                history.append(torch.stack(list(metrics.values())))
        self.updates += 1
        self._renew()
        means = dict(zip(metrics, torch.stack(history).mean(0).tolist(), strict=True))
        error = (data["returns"] - data["values"]).var(correction=0) / (data["returns"].var(correction=0) + 1e-8)
        return {**means, "explained_variance": 1.0 - float(error), "lr": lr}

    def state_dict(self) -> dict[str, Any]:
        """All that learning changes; the random streams are kept by DSec."""
        return {"nets": self.nets.state_dict(), "optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`, on whatever device this agent is."""
        self.nets.load_state_dict(state["nets"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self._renew()

    def _renew(self) -> None:
        """Copy the weights to numpy for acting, each layer as (matrix (in, out), bias (out,))."""
        self.acting = {
            name: [
                (layer.weight.detach().cpu().numpy().T.copy(), layer.bias.detach().cpu().numpy().copy())
                for layer in net
                if isinstance(layer, nn.Linear)
            ]
            for name, net in self.nets.items()
        }

    def _anneal(self) -> float:
        hyper, lr = self.hyper, self.hyper.lr
        if hyper.anneal_iterations:
            lr *= max(hyper.final_lr, 1.0 - self.updates / hyper.anneal_iterations)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _samples(self, batches: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """All steps of all batches in one row, on the learning device."""
        advantages = np.concatenate([self._advantages(batch).reshape(-1) for batch in batches])
        values = np.concatenate([batch["extras"]["value"].reshape(-1) for batch in batches])
        columns = {
            "observations": np.concatenate([batch["observations"].reshape(-1, self.size) for batch in batches]),
            "log_probs": np.concatenate([batch["extras"]["log_prob"].reshape(-1) for batch in batches]),
            "advantages": advantages,
            "values": values,
            "returns": advantages + values,
        }
        actions = np.concatenate([np.asarray(batch["actions"], np.int64).reshape(-1) for batch in batches])
        floats = {name: torch.tensor(column, dtype=torch.float32) for name, column in columns.items()}
        samples = {**floats, "actions": torch.tensor(actions - self.first_action)}
        return {name: column.to(self.device) for name, column in samples.items()}

    def _advantages(self, batch: Mapping[str, Any]) -> np.ndarray:
        """Generalised advantage estimation: float64 (steps, [num_envs]).

        What follows a step is worth 0 if it terminated the episode, what its final observation promises if it was cut
        off there (truncated), and else what the next observation promises.
        """
        values, final = batch["extras"]["value"].astype(np.float64), batch["final_observations"]
        following = np.concatenate([values[1:], self._values(batch["last_observation"], values.shape[1:])[None]])
        ends = (final["row"], final["env"]) if "env" in final else (final["row"],)
        following[ends] = self._values(final["observation"], final["row"].shape)
        following[batch["terminated"]] = 0.0
        goes_on = ~(batch["terminated"] | batch["truncated"])
        deltas = batch["rewards"] + self.hyper.gamma * following - values
        advantages, running = np.zeros_like(deltas), np.zeros(deltas.shape[1:])
        for step in reversed(range(len(deltas))):
            running = deltas[step] + self.hyper.gamma * self.hyper.gae_lambda * goes_on[step] * running
            advantages[step] = running
        return advantages

    def _values(self, observations: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        rows = np.asarray(observations, np.float32).reshape(-1, self.size)
        return _forward(self.acting["critic"], rows)[:, 0].reshape(shape)

    def _minibatches(self, count: int) -> Iterator[torch.Tensor]:
        order = torch.tensor(self.rng.permutation(count)).to(self.device)
        yield from order.split(self.hyper.minibatch)

    def _loss(self, data: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hyper, advantages = self.hyper, data["advantages"]
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        log_probs = self.nets["actor"](data["observations"]).log_softmax(1)
        log_ratio = log_probs.gather(1, data["actions"][:, None])[:, 0] - data["log_probs"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - hyper.clip, 1 + hyper.clip)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        value_loss = 0.5 * (self.nets["critic"](data["observations"])[:, 0] - data["returns"]).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        loss = policy_loss + hyper.vf_coef * value_loss - hyper.ent_coef * entropy
        with torch.no_grad():
            approx_kl = (ratio - 1 - log_ratio).mean()  # http://joschu.net/blog/kl-approx.html
            clip_fraction = (ratio != clipped).float().mean()
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return loss, {n: it.detach() for n, it in metrics.items()} | {"approx_kl": approx_kl, "clipped": clip_fraction}


def _net(sizes: list[int], last_gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with tanh between them; orthogonal weights from the agent's own stream, not torch's global one."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
        last = index == len(sizes) - 2
        nn.init.orthogonal_(layer.weight, last_gain if last else 2**0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, nn.Tanh()]
    return nn.Sequential(*layers)


def _forward(layers: list[tuple[np.ndarray, np.ndarray]], rows: np.ndarray) -> np.ndarray:
    """What `_net` computes, in numpy: float32 (rows, outputs)."""
    for weight, bias in layers[:-1]:
        rows = np.tanh(rows @ weight + bias)
    weight, bias = layers[-1]
    return rows @ weight + bias
