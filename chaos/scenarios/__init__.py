"""What is broken, and how it must be felt; the rest of a run is the same for all (chaos.runner)."""
