"""What the mask did in one micro-batch, as floats for verl's logger, and a watch for masks that do nothing or too much."""

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from carm_core import LogRatio, Scores

_logger = logging.getLogger("carm_verl")


def mask_metrics(ratio: LogRatio, scores: Scores, keep: Tensor, positive: Tensor, outside: Tensor, recorded: Tensor) -> dict[str, float]:
    """Counts and means over one micro-batch, all taken before rejection, in one transfer to the host.

    verl averages a metric over the micro-batches and ranks of a mini-batch, then over the mini-batches of a step (``d_max``: maximum over
    these). A quotient of two counts, e.g. rejected / responses, is therefore exact over the step while every mini-batch has the same number
    of micro-batches, and exact within each mini-batch always; a fraction weighs micro-batches equally.

    Args: `keep` (B,) bool; `positive` (B,) bool, advantage > 0; `outside`, `recorded` (B, T) bool, live tokens outside the
        clip band, and with a rollout log-probability that is not 0.
    """
    counted = ~ratio.empty
    rejected = ~keep  # a response without live tokens is kept
    finite = counted & torch.isfinite(scores.d)
    lengths = ratio.length.double()
    kept_tokens = torch.where(keep, lengths, 0.0).sum()
    sums = {
        "responses": counted.sum(),
        "tokens": lengths.sum(),
        "rejected": rejected.sum(),
        "rejected_tokens": torch.where(rejected, lengths, 0.0).sum(),
        "rejected_positive": (rejected & positive).sum(),
        "nonfinite": ratio.nonfinite.sum(),
        "recorded_tokens": recorded.sum(),
        "clipped_tokens": ratio.clipped.sum(),
        "d_mean": torch.where(finite, scores.d, 0.0).sum() / finite.sum().clamp(min=1),
        "d_max": torch.nn.functional.pad(torch.where(finite, scores.d, 0.0), (0, 1)).amax(),
        "g_mean": torch.where(finite, scores.g, 0.0).sum() / finite.sum().clamp(min=1),
        "kept_out_of_band": (outside & keep[:, None]).sum() / kept_tokens.clamp(min=1),
    }
    values = dict(zip(sums, torch.stack([x.double() for x in sums.values()]).tolist(), strict=True))
    values["rejected_fraction"] = values["rejected"] / max(values["responses"], 1.0)
    values["rejected_token_fraction"] = values["rejected_tokens"] / max(values["tokens"], 1.0)
    return {f"actor/carm/{name}": value for name, value in values.items()}


@dataclass
class Watch:
    """Consecutive micro-batches of this process in which the mask saw nothing (every log-ratio 0, or no rollout log-probability at all)
    or left nothing.
    """

    inert: int = 0
    silent: int = 0
    empty: int = 0
    told: set[str] = field(default_factory=set)

    def see(self, metrics: dict[str, float], inert_after: int) -> None:
        """Count one micro-batch; warn once per pattern.

        Raises: RuntimeError after `inert_after` consecutive micro-batches of log-probabilities identical to the trainer's, and after 8
            whose rollout log-probabilities are all 0 (one short, certain answer can be; eight micro-batches are a missing field).
        """
        responses = metrics["actor/carm/responses"]
        if not responses:
            return
        idle = metrics["actor/carm/d_max"] == 0.0 and metrics["actor/carm/nonfinite"] == 0
        self.inert = self.inert + 1 if idle else 0
        self.empty = self.empty + 1 if metrics["actor/carm/rejected"] == responses else 0
        if self.inert:
            self._once(
                "inert",
                "every log-ratio of a micro-batch is exactly 0: old_log_probs equal the trainer's own; the mask decides nothing "
                "unless rollout engine and trainer agree to the bit",
            )
        self.silent = 0 if metrics["actor/carm/recorded_tokens"] else self.silent + 1
        if self.silent >= 8:
            raise RuntimeError(
                f"old_log_probs: got 0 on every response token of {self.silent} consecutive micro-batches; need the sampler's "
                "log-probabilities; because the agent loop or the rollout engine returned none"
            )
        if inert_after and self.inert >= inert_after:
            raise RuntimeError(
                f"old_log_probs: got values identical to the trainer's in {self.inert} consecutive micro-batches; need the sampler's; "
                "because the mask is inert (algorithm.rollout_correction.bypass_mode=true; policy_loss.inert_after=0 if this is meant)"
            )
        if self.empty >= 8:
            self._once(
                "empty",
                f"every response of {self.empty} consecutive micro-batches was rejected: the policy does not move; see actor/carm/d_mean "
                "and actor/carm/g_mean (a threshold too tight, truncated sampling, a temperature mismatch, stale weights)",
            )

    def _once(self, key: str, text: str) -> None:
        if key not in self.told:
            self.told.add(key)
            _logger.warning(text)
