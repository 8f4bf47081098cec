"""How a study is judged, in words for the page: the definitions behind its numbers."""

from stress.alarms import IN_A_ROW, QUANTILE
from stress.records import COLLAPSE, COLLAPSE_FROM, FINAL_SHARE

METHOD = (
    "Scores are (raw − floor) / (solved − floor): 0 is a random policy, 1 a solved task. The score of "
    "training is that of the sampled policy over the last window of episodes.",
    f"Final: the mean score over the last {FINAL_SHARE:.0%} of the steps within the budget. Area: the mean "
    "score over all steps of the budget. Steps that were dropped count as steps. Evaluated: episodes "
    "played at the end.",
    "A failed run counts with the score of a random policy, and as one that never reached the threshold.",
    f"Collapsed: final below {COLLAPSE:.0%} of the run's own best, where that best passed "
    f"{COLLAPSE_FROM:.0%} of the solved score. Fell: was once below that share of its best so far, whether "
    "or not it recovered.",
    "Interquartile mean, optimality gap, probability of improvement, performance profiles and stratified "
    "percentile bootstrap: rliable's definitions (Agarwal et al. 2021).",
    "A difference is the mean over paired seeds. A contrast named beforehand is decided if Student's t on "
    "the pairs gives p ≤ 0.05 and, from six pairs on, the test that flips their signs too; all others by t "
    "after Holm's correction, with one family for each question. Fewer than five pairs decide nothing, and "
    "are in no family.",
    "Equal: two one-sided t-tests exclude a difference of the margin or more, at 5 %. Nearly free at a lag: "
    "equal to lag 0 in the area under the curve.",
    "Realised lag: the mean area of the asynchronous runs against the two exact lags around their mean lag, "
    "in proportion. Lag explains them if two one-sided tests exclude a difference of the margin; something "
    "else does if they differ; both after Holm's correction over all such arms.",
    "Times: the expected time under restarts, which is all time spent over the number of runs that reached "
    "the threshold. Runs that never did count with all their time. A ratio is decided if its 95 % interval "
    "excludes 1 and, at 5 %, the test that lets the two runs of a pair change places says so too (of fewer "
    "than six pairs, which that cannot decide, t on the logarithms of the times); where it was not named "
    "beforehand, after Holm's correction.",
    "Seeds that would decide: by a power analysis for 80 %, if the true difference is the one found; for an "
    "equivalence, if there is no difference.",
    f"Alarm of a diagnostic: the {IN_A_ROW}nd of {IN_A_ROW} points in a row beyond the {QUANTILE:.0%} "
    "quantile of its reference runs (beyond the opposite one where low is bad). False alarms are those in "
    "lagged runs that did not fall; the thresholds from such runs leave out the seed that is judged.",
)
