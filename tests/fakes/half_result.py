"""Writes half a JSON, without the rename, and ends well."""

from say import HERE, phase

phase("steady")
(HERE / "result.json").write_text('{"schema_version": 1, "trial_uu')
