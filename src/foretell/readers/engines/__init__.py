"""Serving engines: vLLM and its recipes, SGLang, TensorRT-LLM."""
