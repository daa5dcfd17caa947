"""Network file systems are found in the list of mounts."""

from __future__ import annotations

from pathlib import Path

from tuner.mounts import network_file_system


def test_network_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/vdb /home/me/local ext4 rw 0 0\n"
        "me@host: /mnt/my\\040files fuse.sshfs rw 0 0\nserver:/x /homework cifs rw 0 0\n"
    )
    assert network_file_system(Path("/home/me/studies"), mounts) == "nfs4"
    assert network_file_system(Path("/home/me/local/studies"), mounts) is None
    assert network_file_system(Path("/mnt/my files/studies"), mounts) == "fuse.sshfs"
    assert network_file_system(Path("/srv"), mounts) is None
    assert network_file_system(Path("/srv"), tmp_path / "none") is None
