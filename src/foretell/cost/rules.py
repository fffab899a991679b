"""Brings every rule: importing this module fills :data:`foretell.cost.saved.RULES`."""

from __future__ import annotations

from foretell.cost import loss, rules_attention, rules_experts, rules_matmul, rules_pointwise, rules_rope, rules_spatial

__all__ = ["loss", "rules_attention", "rules_experts", "rules_matmul", "rules_pointwise", "rules_rope", "rules_spatial"]
