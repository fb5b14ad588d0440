"""The replicated metadata log: quorum, controller decisions, image, records."""
