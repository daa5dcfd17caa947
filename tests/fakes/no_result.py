"""Ends with exit status 0 and no result."""

from say import phase

phase("steady")
