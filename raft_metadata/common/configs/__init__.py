"""The one table of topic, cluster and broker configs, and which of several values is in force."""
