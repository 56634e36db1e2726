"""One file a capability, named after it; each reads top to bottom: why, targets, contract, patch."""
