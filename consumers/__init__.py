"""What happens to experience: the learner with its models, corrections and checkpoints, and the evaluator."""
