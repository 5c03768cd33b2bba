"""How much is tried where inputs are made up: enough at every run; more with HYPOTHESIS_PROFILE=soak.

How long an input takes is no finding: on a busy machine it would fail tests of what is in order.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("quick"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
