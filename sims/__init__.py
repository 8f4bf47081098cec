"""Simulators: the C ABI (sim.h), one folder a simulator, and the loader for tests and evaluation."""
