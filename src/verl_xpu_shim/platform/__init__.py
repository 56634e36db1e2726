"""Intel GPUs as a verl platform."""
