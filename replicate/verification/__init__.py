"""`verify`: one device against K towers, on a person's own model and data."""

from replicate.verification.comparison import verify
from replicate.verification.judgement import Row, Verification

__all__ = ["Row", "Verification", "verify"]
