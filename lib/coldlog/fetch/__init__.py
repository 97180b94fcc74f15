"""fetch: what does a fetch of archived records get? One partition, one offset, without an engine."""
