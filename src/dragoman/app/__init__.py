"""Settings, wiring, start and stop order: where the parts become one hub."""
