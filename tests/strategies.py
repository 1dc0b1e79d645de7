"""What Hypothesis draws: shapes, chunkings, orthonormal bases, data with ties."""

from __future__ import annotations
