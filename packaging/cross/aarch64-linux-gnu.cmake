# For arm64 on a Debian of another architecture, with its cross compiler and the libraries of arm64 beside its own (multiarch).
# The preset "arm64" uses it. packaging/cross/build makes such a Debian.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# pkg-config, too, takes the libraries of arm64 and no others.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
# What is made by a program of ours, and the unit tests.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
