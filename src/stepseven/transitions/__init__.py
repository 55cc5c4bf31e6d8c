"""Load, decide, write: one transaction each. The only code that changes state."""
