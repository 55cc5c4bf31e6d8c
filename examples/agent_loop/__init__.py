"""A model with tools, in a loop written by hand: each turn and each tool call is a step."""
