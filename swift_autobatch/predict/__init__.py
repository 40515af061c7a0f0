"""Pure functions (facts, candidate, calibration or None) -> Prediction; each term in its own module."""

from swift_autobatch.predict.assemble import card_budget, predict

__all__ = ["card_budget", "predict"]
