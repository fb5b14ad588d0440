"""What can be asked of the controller (commands) and what has happened (records)."""
