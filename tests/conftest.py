"""How much is tried where inputs are made up: enough at every run; more with HYPOTHESIS_PROFILE=soak."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("quick", max_examples=15)
settings.register_profile("soak", max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
