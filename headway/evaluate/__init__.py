"""How good an answer is, and whether it is the same one everywhere."""

from headway.evaluate.verify import CHECKS, Check, Comparison, Gap, check_alone, compare, sample_rows, usual_tolerance

__all__ = ["CHECKS", "Check", "Comparison", "Gap", "check_alone", "compare", "sample_rows", "usual_tolerance"]
