"""Which file is behind a loop device."""
import fcntl
import os
import struct

LOOP_GET_STATUS64 = 0x4C05


def loop_backing(path):
    try:
        device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = bytearray(232)
        fcntl.ioctl(device, LOOP_GET_STATUS64, info)
        return struct.unpack_from("<QQ", info)  # device and inode of the file
    except OSError:
        return None
    finally:
        os.close(device)
