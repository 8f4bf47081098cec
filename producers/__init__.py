"""The C producer, the policy program and the C policy that runs it."""
