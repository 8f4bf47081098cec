"""What an alarm of each audit (consumers/audits.py) usually means, in a line for whoever watches the run.

Without torch: the supervisor reads it too."""

from __future__ import annotations

CAUSES = {
    "label": (
        "stored log-probabilities are not those of the weights they are labelled with: wrong version labels, "
        "weights that do not reach the producers, recurrent state that is not reset at an end, an action "
        "mask that one side does not apply, or a policy that acts in low precision"
    ),
    "ratio": (
        "actions are not distributed as their log-probabilities say: a sampler or an action mask that "
        "differs between actor and learner, or actions changed after their log-probability was taken"
    ),
    "target": (
        "targets or advantages are not the sum that defines them: a bootstrap behind a terminal, a value of "
        "another state as the bootstrap, or a trace across the end of an episode"
    ),
    "precision": (
        "bfloat16 changes the learner's log-probabilities by more than a ratio can bear: set "
        "learner.precision: float32, or look for observations of large values (policy.normalize_obs) or a "
        "small deviation of continuous actions"
    ),
}
