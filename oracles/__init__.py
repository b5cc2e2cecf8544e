"""Test oracles for the integer metadata that LLM servers compute on AMD GPUs."""
