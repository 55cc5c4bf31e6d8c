"""Executes Python workflows: the step call, the run's handle, one run in memory, waiting."""
