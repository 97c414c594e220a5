"""Where ads come from."""
