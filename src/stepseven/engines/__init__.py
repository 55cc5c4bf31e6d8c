"""What takes runs and executes them without being told which: a worker in this process, or one of its own."""
