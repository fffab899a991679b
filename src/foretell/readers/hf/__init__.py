"""Hugging Face: the Trainer, TRL, accelerate and DeepSpeed."""
