"""Clients of HTTP endpoints: chat, audio chat, prices, budgets."""
