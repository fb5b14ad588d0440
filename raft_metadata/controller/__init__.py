"""The pure deciders of the active controller, and the soft state on which they decide."""
