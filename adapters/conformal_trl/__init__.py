"""Calibrated rollout budgets and response masks inside TRL."""
