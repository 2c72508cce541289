"""Which file is behind a loop device."""
import fcntl
import os
import struct

LOOP_GET_STATUS64 = 0x4C05


def loop_backing(path):
    """Device and inode of the file, and the name that the device was given: an agent's copy of a layer says whose it is."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = bytearray(232)
        fcntl.ioctl(device, LOOP_GET_STATUS64, info)
        name = bytes(info[56:120]).split(b"\0")[0].decode(errors="replace")
        return *struct.unpack_from("<QQ", info), name
    except OSError:
        return None
    finally:
        os.close(device)
