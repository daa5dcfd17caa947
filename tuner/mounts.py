"""Is a path on a network file system? SQLite's WAL needs memory that all processes share, so one host."""

from __future__ import annotations

from pathlib import Path

NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "9p", "afs", "gpfs", "beegfs", "glusterfs"),
    *("vboxsf", "virtiofs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.s3fs"),
    *("fuse.rclone", "fuse.gcsfuse", "fuse.juicefs"),
)
"""Types, as /proc/mounts spells them, on which WAL's shared memory cannot be relied on."""


def network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """Return the type of the network file system that `path` lies on; None: a local one, or not known."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    found, kind, target = Path("/"), "", path.resolve()
    for fields in (line.split() for line in lines):
        # The kernel writes a blank in a path as \040; a later mount hides an earlier one.
        point = Path(fields[1].replace("\\040", " "))
        if target.is_relative_to(point) and len(point.parts) >= len(found.parts):
            found, kind = point, fields[2]
    return kind if kind in NETWORK_FILE_SYSTEMS else None
