"""LLM Foundry."""
