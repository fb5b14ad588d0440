"""Commands that are sent to the controllers, and records that they write to the metadata log."""
