"""The slow, literal definitions: the oracle that fast code is compared with.

Written for reading, not for speed: each function follows its formula word by word.
"""

from __future__ import annotations
