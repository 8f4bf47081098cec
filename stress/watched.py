"""The diagnostics that are watched for warnings of a fall."""

HIGH, LOW = 1, -1
DIAGNOSTICS = {
    "ratio_ess": LOW, "ratio_chi2": HIGH, "ratio_k1": HIGH, "ratio_k2": HIGH, "ratio_k3": HIGH,
    "ratio_log_max": HIGH, "ratio_p1": LOW, "ratio_p99": HIGH, "rho_clipped": HIGH, "clipped_ratio": HIGH,
    "bounded_weight": HIGH, "approx_kl": HIGH, "update_kl": HIGH, "grad_norm": HIGH, "update_ratio": HIGH,
    "policy_churn": HIGH, "explained_variance": LOW, "explained_variance_plain": LOW, "loss_value": HIGH,
    "entropy_ratio": LOW, "value_change": HIGH, "second_moment_max": HIGH,
}  # fmt: skip
"""Names as in metrics.jsonl, and on which side the danger lies."""
