"""Formats of a panel of weights; `weights` describes and makes them, `matmul` computes with them."""

PANEL = 32  # outputs of a panel
BLOCK = 32  # inputs that share a scale

F32, BF16, Q8, Q4 = range(4)
